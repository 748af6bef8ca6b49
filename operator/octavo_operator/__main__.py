"""`python -m octavo_operator` is the same as the `octavo-operator` command."""

from octavo_operator.cli import main

raise SystemExit(main())
