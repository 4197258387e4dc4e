"""The notations of arguments that are not JSON: pairs, elements, Gemma's; what their values mean, and their grammar."""
