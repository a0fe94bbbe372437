"""python -m dadlm.cli: the same as the command dadlm."""

from dadlm.cli import main

raise SystemExit(main())
