"""Attacks on a broker beside a well-behaved pair of clients, and what the pair notices of them.

    python -m hostile [WORDS OF A NAME ...]     with tests/ in PYTHONPATH; `make hostile` runs all

`field.py` is where it happens: brokers, ports, files. `attacks/` has the attacks, each a generator with a
name and a sentence; `attacker.py` runs one in a process of its own. `good.py` is the pair, `others.py`
whoever else comes by. `measure.py` puts them together, `table.py` says what came of it, and `page.py` writes
it into docs/security.md.
"""
