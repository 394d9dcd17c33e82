"""People, the organisations they act for, and the keys their programs carry."""

from typing import Any, ClassVar

import pgtrigger
from django.contrib.auth.models import AbstractBaseUser, BaseUserManager, PermissionsMixin
from django.db import models, transaction
from django.db.models import F, Q
from django.db.models.functions import Lower
from django.utils.text import slugify

from marketplace.common.models import NO_TRUNCATE, IdField, TimestampedModel


class UserManager(BaseUserManager["User"]):
    """Django's commands create people through this; so do our services."""

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> "User":
        if not email:
            raise ValueError("a person needs an email address")
        user = self.model(email=email.strip().lower(), **fields)
        user.set_password(password)
        with transaction.atomic(using=self._db):
            user.save(using=self._db)
            Organisation.objects.get_or_create_personal(user)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> "User":
        return self.create_user(email, password, is_operator=True, is_superuser=True, **fields)

    def get_by_natural_key(self, username: str | None) -> "User":
        return self.get(email=(username or "").strip().lower())


class User(AbstractBaseUser, PermissionsMixin):
    """A person, who signs in with an email address."""

    id = IdField(prefix="usr")
    #: Kept in lower case.
    email = models.EmailField(unique=True)
    name = models.CharField(max_length=120, blank=True)
    is_active = models.BooleanField(default=True)
    #: Runs the market: sees every organisation, the operator console and the back office.
    is_operator = models.BooleanField(default=False)
    date_joined = models.DateTimeField(auto_now_add=True)

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="user_email_lower_case", condition=Q(email=Lower(F("email")))
            )
        ]

    def __str__(self) -> str:
        return self.email

    def clean(self) -> None:
        """Forms may hold the address in any case."""
        super().clean()
        self.email = self.email.lower()

    @property
    def is_staff(self) -> bool:
        """What Django's admin asks before it lets anyone in."""
        return self.is_operator

    def has_perm(self, perm: str, obj: Any = None) -> bool:
        """Operators may see everything in the back office; changing it takes a superuser."""
        views = perm.partition(".")[2].startswith("view_")
        return super().has_perm(perm, obj) or (self.is_active and self.is_operator and views)

    def has_module_perms(self, app_label: str) -> bool:
        return super().has_module_perms(app_label) or (self.is_active and self.is_operator)

    def get_full_name(self) -> str:
        return self.name or self.email

    def get_short_name(self) -> str:
        return self.name or self.email.partition("@")[0]


class OrganisationManager(models.Manager["Organisation"]):
    """How a person comes by an organisation of their own."""

    def get_or_create_personal(self, user: User) -> "Organisation":
        """The person's own organisation, made now if they have none; safe to run twice at once."""
        with transaction.atomic(using=self._db):
            local_part = user.email.partition("@")[0]
            organisation, _ = self.get_or_create(
                personal_for=user,
                defaults={
                    "name": (user.name or local_part)[:120],
                    "slug": make_slug(local_part, user.pk),
                },
            )
            Membership.objects.using(self._db).get_or_create(
                organisation=organisation, user=user, defaults={"role": Role.OWNER}
            )
        return organisation


def make_slug(name: str, row_id: str) -> str:
    """Readable and unique: ids are, and their last letters are random."""
    return f"{slugify(name)[:100]}-{row_id[-10:]}".lstrip("-")


class Organisation(TimestampedModel):
    """Who bids, owns data and adapters, holds a wallet, or provides nodes."""

    memberships: "models.Manager[Membership]"
    invitations: "models.Manager[Invitation]"
    personal_for_id: str | None

    id = IdField(prefix="org")
    name = models.CharField(max_length=120)
    slug = models.SlugField(max_length=140, unique=True)
    #: May list nodes and is paid for their cells.
    is_provider = models.BooleanField(default=False)
    #: The person this organisation was made for at sign-up; at most one each.
    personal_for = models.OneToOneField(
        User, null=True, blank=True, on_delete=models.PROTECT, related_name="personal_organisation"
    )
    members = models.ManyToManyField(User, through="Membership", related_name="organisations")
    #: Its jobs run on nodes of verified providers only, where a bid says nothing of it.
    verified_only = models.BooleanField(default=False, db_default=False)
    #: Days after which its data and results are deleted that nothing has used; null: never.
    retain_days = models.PositiveIntegerField(null=True, blank=True)
    #: Since when an operator has lifted the limits of new accounts (``accounts.new_accounts``).
    trusted_at = models.DateTimeField(null=True, blank=True, editable=False)
    #: When its content was deleted; what is left is its accounts.
    erased_at = models.DateTimeField(null=True, editable=False)

    objects: ClassVar[OrganisationManager] = OrganisationManager()

    class Meta:
        constraints = [
            models.CheckConstraint(name="organisation_name_not_empty", condition=~Q(name=""))
        ]

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    #: May do everything, members included.
    OWNER = "owner"
    #: May pay and see what was paid, and everything else a viewer may.
    BILLING = "billing"
    #: May bid and see the organisation's work.
    MEMBER = "member"
    #: May look at everything and change nothing.
    VIEWER = "viewer"


#: Who may work with the organisation's data and bid for it.
WORKERS = frozenset({Role.OWNER, Role.MEMBER})
#: Who may put money in and say how it is spent.
PAYERS = frozenset({Role.OWNER, Role.BILLING})


class Membership(TimestampedModel):
    organisation_id: str
    user_id: str

    id = IdField(prefix="mem")
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="memberships"
    )
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="membership_once_per_organisation", fields=["organisation", "user"]
            ),
            models.CheckConstraint(name="membership_role_known", condition=Q(role__in=Role.values)),
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.organisation} ({self.role})"


class Invitation(TimestampedModel):
    """A place in an organisation, kept for an email address until accepted."""

    organisation_id: str
    accepted_by_id: str | None

    id = IdField(prefix="inv")
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="invitations"
    )
    email = models.EmailField()
    role = models.CharField(max_length=10, choices=Role.choices)
    invited_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    #: SHA-256 of the secret in the invitation's address, in hex.
    token_hash = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True)
    accepted_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(name="invitation_role_known", condition=Q(role__in=Role.values)),
            models.CheckConstraint(
                name="invitation_accepted_by_someone",
                condition=Q(accepted_at__isnull=True, accepted_by__isnull=True)
                | Q(accepted_at__isnull=False, accepted_by__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.email} to {self.organisation}"


class Scope(models.TextChoices):
    """What a key may do; ``read`` scopes show, ``write`` scopes change."""

    BIDS_READ = "bids:read"
    BIDS_WRITE = "bids:write"
    DATASETS_READ = "datasets:read"
    DATASETS_WRITE = "datasets:write"
    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    #: Ask models, which costs money.
    MODELS_USE = "models:use"
    WALLET_READ = "wallet:read"
    KEYS_READ = "keys:read"
    #: Replace and revoke keys that may do no more than this one.
    KEYS_WRITE = "keys:write"
    MEMBERS_READ = "members:read"
    #: Invite, give roles and remove, where the key's maker is an owner.
    MEMBERS_WRITE = "members:write"
    WEBHOOKS_READ = "webhooks:read"
    WEBHOOKS_WRITE = "webhooks:write"
    PROVIDER_READ = "provider:read"
    PROVIDER_WRITE = "provider:write"
    #: Say who is paid and where: the gateway's own pages ask for it.
    PAYOUTS_WRITE = "payouts:write"


class ApiKey(TimestampedModel):
    """A program's credential for one organisation; the secret itself is never stored."""

    created_by_id: str
    #: What its maker is in the organisation now; on keys that ``authenticate_api_keys`` found.
    maker_role: str | None = None

    id = IdField(prefix="key")
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="api_keys"
    )
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=80)
    #: The visible part of the secret, ``ft_<prefix>``, by which the key is found.
    prefix = models.CharField(max_length=16, unique=True)
    #: SHA-256 of the whole secret, in hex; the secret is random, so it needs no salt.
    secret_hash = models.CharField(max_length=64)
    #: Of the secret that was replaced, which may be used until the moment below.
    earlier_secret_hash = models.CharField(max_length=64, blank=True)
    earlier_secret_until = models.DateTimeField(null=True, blank=True, editable=False)
    scopes = models.JSONField(default=list)
    #: What a request without a bid of its own bids at most; null: it is refused.
    bid_price_micros = models.BigIntegerField(null=True, blank=True)
    #: Seconds from a request to its deadline; null: the latest deadline on sale.
    bid_deadline_s = models.PositiveIntegerField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    #: To the minute: a busy key must not write a row for every request.
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True)
    #: Since when an operator has it refused, and why.
    frozen_at = models.DateTimeField(null=True, blank=True, editable=False)
    frozen_reason = models.CharField(max_length=300, blank=True, editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(name="api_key_name_not_empty", condition=~Q(name="")),
            models.CheckConstraint(
                name="api_key_bids_something",
                condition=Q(bid_price_micros__isnull=True) | Q(bid_price_micros__gt=0),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class Subject(models.TextChoices):
    """What can be deleted."""

    DATASET = "dataset", "Data set"
    #: A job's adapter in every form, and its checkpoints.
    ADAPTER = "adapter", "Adapter"
    #: The adapter too, and what the job's owner and its nodes wrote.
    JOB = "job", "Job"
    ORGANISATION = "organisation", "Organisation"
    PERSON = "person", "Person"


class Deletion(models.Model):
    """Content that somebody had deleted; the row stays, and says when it was gone."""

    id = IdField(prefix="del")
    subject = models.CharField(max_length=12, choices=Subject.choices)
    subject_id = models.CharField(max_length=40)
    #: Whose content it is; empty: a person's.
    organisation_id = models.CharField(max_length=40, blank=True)
    #: Empty: its time of retention was over.
    asked_by_id = models.CharField(max_length=40, blank=True)
    asked_at = models.DateTimeField()
    #: What still needed it when that was last looked at.
    waits_for = models.CharField(max_length=300, blank=True)
    erased_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["subject", "subject_id"], name="deletion_once")
        ]
        indexes = [models.Index(fields=["organisation_id", "-asked_at"], name="deletion_of")]

    def __str__(self) -> str:
        return f"{self.subject} {self.subject_id}"


class AuditEntry(models.Model):
    """One act: a person, a key or a command changed something, or opened what is others'.

    Identifiers only, and no foreign keys: entries outlive the rows they name.
    """

    at = models.DateTimeField(db_index=True)
    #: Whose business it was; empty: the market's own.
    organisation_id = models.CharField(max_length=40, blank=True, db_index=True)
    #: Who did it; empty: a command, or nobody who signed in.
    person_id = models.CharField(max_length=40, blank=True, db_index=True)
    key_id = models.CharField(max_length=40, blank=True, db_index=True)
    #: The view's or command's name, as words.
    act = models.CharField(max_length=120)
    #: Identifiers from the address of the request.
    subject = models.CharField(max_length=200, blank=True)
    #: Of the form: what ``audit.KEPT_FIELDS`` lets through.
    details = models.JSONField(default=dict)
    #: False: it was refused.
    done = models.BooleanField()
    #: Where the request came from; nothing where that is not known, or its person's account is
    #: deleted.
    address = models.GenericIPAddressField(null=True)

    class Meta:
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Delete),
            pgtrigger.ReadOnly(name="keep_all_but_address", exclude=["address"]),
            pgtrigger.Protect(
                name="only_forget_address",
                operation=pgtrigger.Update,
                condition=pgtrigger.Q(new__address__isnull=False),
            ),
            NO_TRUNCATE,
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.act} {self.subject}"
