from django.db import migrations, models
from django.db.models import Q

#: A bid's first rows are those of its decision; later ones came with later plans.
NUMBER_REVISIONS = """
UPDATE auction_reservation AS row SET revision = 2
FROM (
    SELECT r.id, row_number() OVER (PARTITION BY r.bid_id ORDER BY r.id) AS place,
        jsonb_array_length(b.cells) AS decided
    FROM auction_reservation r JOIN auction_bid b ON b.id = r.bid_id
) AS found
WHERE found.id = row.id AND found.place > found.decided
"""


class Migration(migrations.Migration):

    dependencies = [
        ('auction', '0005_signed_heads'),
    ]

    operations = [
        migrations.AddField(
            model_name='reservation',
            name='revision',
            field=models.PositiveIntegerField(db_default=1, default=1),
        ),
        migrations.RunSQL(NUMBER_REVISIONS, migrations.RunSQL.noop),
        migrations.RemoveConstraint(
            model_name='bid',
            name='auction_bid_admitted_has_decision',
        ),
        migrations.AddConstraint(
            model_name='bid',
            constraint=models.CheckConstraint(
                condition=~Q(status='admitted')
                | Q(payment_micros__gte=0, position__isnull=False),
                name='auction_bid_admitted_has_decision',
            ),
        ),
        # The column stays and is no longer written.
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.RemoveField(model_name='bid', name='cells')],
        ),
    ]
