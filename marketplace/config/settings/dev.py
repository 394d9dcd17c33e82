"""One machine, no secrets: what ``manage.py`` and the demo use."""

from marketplace.config.settings import environment
from marketplace.config.settings.base import *  # noqa: F403

DEBUG = environment.flag("DEBUG", default=True)
SECRET_KEY = environment.text("SECRET_KEY", "finetender-insecure-development-key")

# One machine is one owner's: whoever can reach it may list nodes.
PROVIDERS_NEED_APPROVAL = environment.flag("PROVIDERS_NEED_APPROVAL", default=False)

# Static files come straight from the apps; nothing has to be collected first.
SERVESTATIC_USE_FINDERS = True
SERVESTATIC_AUTOREFRESH = DEBUG
