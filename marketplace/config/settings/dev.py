"""One machine, no secrets: what ``manage.py`` and the demo use."""

from marketplace.config.settings import environment
from marketplace.config.settings.base import *  # noqa: F403

# Debug pages show settings and variables to all who reach the port; ask for them.
DEBUG = environment.flag("DEBUG", default=False)
SECRET_KEY = environment.text("SECRET_KEY", "finetender-insecure-development-key")

# One machine is one owner's: anyone who can reach it may list nodes, and bid at once.
PROVIDERS_NEED_APPROVAL = environment.flag("PROVIDERS_NEED_APPROVAL", default=False)
NEW_ACCOUNT_DAYS = int(environment.number("NEW_ACCOUNT_DAYS", 0))
DEMO_MONEY_MICROS = int(environment.number("DEMO_MONEY_USD", 20, at_least=0)) * 1_000_000
OPERATORS_NEED_MFA = environment.flag("OPERATORS_NEED_MFA", default=False)

# Static files come straight from the apps; nothing has to be collected first.
SERVESTATIC_USE_FINDERS = True
SERVESTATIC_AUTOREFRESH = DEBUG
