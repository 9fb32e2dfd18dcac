"""Write the chosen layouts into the source of a kernel."""
