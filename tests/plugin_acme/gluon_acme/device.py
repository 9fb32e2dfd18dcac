"""The device: where it is, and how a kernel is launched on it."""

from gluon_core.plugin import Device, errors


class AcmeDevice(Device):
    def problem(self):
        return "no Anvil was ever built"

    def launcher(self, compiled):
        raise errors.DeviceError(self.problem(), remedy="Run on target 'sim:acme1'.")
