from dadlm.cli import main

raise SystemExit(main())
