"""library.called: the operator @"""


def run(a, b):
    return a @ b
