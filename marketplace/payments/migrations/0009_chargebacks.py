import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('payments', '0008_spending_caps'),
    ]

    operations = [
        migrations.AlterModelTable(name='dispute', table='payments_dispute'),
        migrations.RenameModel(old_name='Dispute', new_name='Chargeback'),
        migrations.AlterField(
            model_name='chargeback',
            name='payment',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='chargebacks', to='payments.cardpayment'),
        ),
        migrations.AlterField(
            model_name='entry',
            name='kind',
            field=models.CharField(choices=[('grant', 'Grant'), ('hold', 'Hold'), ('charge', 'Charge'), ('release', 'Release'), ('distribution', 'Distribution'), ('maturity', 'Maturity'), ('refund', 'Refund'), ('sla_credit', 'Sla Credit'), ('vendor_pay', 'Vendor Pay'), ('top_up', 'Top Up'), ('capture', 'Capture'), ('card_return', 'Card Return'), ('card_refund', 'Card Refund'), ('gateway_fee', 'Gateway Fee'), ('uncollected', 'Uncollected'), ('dispute', 'Chargeback'), ('dispute_closed', 'Chargeback Closed'), ('payout', 'Payout'), ('transfer', 'Transfer'), ('reversal', 'Reversal'), ('rent', 'Rent')], max_length=20),
        ),
        migrations.AlterField(
            model_name='ledgeraccount',
            name='kind',
            field=models.CharField(choices=[('wallet_available', 'Wallet Available'), ('wallet_held', 'Wallet Held'), ('earnings_pending', 'Earnings Pending'), ('earnings_payable', 'Earnings Payable'), ('clearing', 'Clearing'), ('revenue', 'Revenue'), ('refunds', 'Refunds'), ('sla_credits', 'Sla Credits'), ('grants', 'Grants'), ('gateway', 'Gateway'), ('gateway_fees', 'Gateway Fees'), ('authorised', 'Authorised'), ('card_refunds', 'Card Refunds'), ('disputes', 'Chargebacks'), ('payouts', 'Payouts'), ('rent', 'Rent'), ('suppliers', 'Suppliers')], max_length=20),
        ),
    ]
