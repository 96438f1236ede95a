"""Messages as they stand on the wire, and the codecs. Pure: no trio, no logging, no state."""
