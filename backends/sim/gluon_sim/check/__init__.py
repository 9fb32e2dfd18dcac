"""What is looked for while kernels run: races, addresses, values nobody wrote, overflows."""
