"""A decoder described as data: what both graph emitters, the NumPy reference and the memory estimate read.

Nothing here acts, and nothing but the standard library is needed, so that any part may use these types. A family is
a function describe(config) -> Decoder in export/architectures; what differs between families is a field.
"""
