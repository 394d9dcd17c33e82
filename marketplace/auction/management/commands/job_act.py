"""``manage.py job_act JOB replan|cancel|refund --operator EMAIL --reason WORDS [--dollars N]``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.models import User
from marketplace.accounts.operator_command import OperatorCommand
from marketplace.auction.models import Bid
from marketplace.auction.operator_acts import (
    end_by_operator,
    refund_by_operator,
    replan_by_operator,
)
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.common.money import to_micros
from marketplace.jobs.models import Job


class Command(OperatorCommand):
    help = "Have a job planned again, end it at the market's cost, or give back of its price."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("job", help="the job's id")
        parser.add_argument("act", choices=("replan", "cancel", "refund"))
        parser.add_argument("--operator", required=True, help="the operator's email address")
        parser.add_argument("--reason", required=True, help="what the job's owner reads")
        parser.add_argument("--dollars", default="", help="to refund, such as 1.25")

    def handle(self, *_args: Any, **options: Any) -> None:
        job = Job.objects.filter(pk=options["job"]).first()
        operator = User.objects.filter(email=options["operator"].lower()).first()
        if job is None:
            raise CommandError(f"There is no job {options['job']}.")
        if operator is None:
            raise CommandError(f"There is no person {options['operator']}.")
        reason, now = options["reason"], clock.now()
        try:
            if options["act"] == "replan":
                replan_by_operator(job=job, reason=reason, asked_by=operator, now=now)
            elif options["act"] == "cancel":
                end_by_operator(job=job, reason=reason, ended_by=operator, now=now)
            else:
                refund_by_operator(
                    bid=Bid.objects.get(pk=job.bid_id),
                    amount_micros=to_micros(options["dollars"]),
                    reason=reason,
                    refunded_by=operator,
                    now=now,
                )
        except UserError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"{job.pk}: done, {options['act']}.")
