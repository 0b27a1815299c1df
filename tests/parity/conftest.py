"""The script that writes the goldens needs the `parity` extra; tests only read what it wrote."""

collect_ignore = ["make_goldens.py"]
