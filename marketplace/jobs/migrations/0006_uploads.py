import django.db.models.deletion
import marketplace.common.models
import marketplace.jobs.models.datasets
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0002_audit'),
        ('fleet', '0008_one_price_policy'),
        ('jobs', '0005_slice_steps_lost'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='dataset',
            name='left_out_long',
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='dataset',
            name='long_lines',
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name='dataset',
            name='long_rows',
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.CreateModel(
            name='Upload',
            fields=[
                ('id', marketplace.common.models.IdField(prefix='up', serialize=False)),
                ('name', models.CharField(max_length=255)),
                ('file', models.FileField(blank=True, max_length=255, upload_to=marketplace.jobs.models.datasets.upload_path)),
                ('sha256', models.CharField(max_length=64)),
                ('bytes', models.PositiveBigIntegerField()),
                ('choices', models.JSONField(default=dict)),
                ('key', models.CharField(max_length=300, null=True)),
                ('status', models.CharField(choices=[('waiting', 'Waiting'), ('reading', 'Being read'), ('undecided', 'To be decided'), ('refused', 'Refused'), ('stored', 'Stored')], default='waiting', max_length=12)),
                ('rows_read', models.PositiveIntegerField(default=0)),
                ('share_read', models.FloatField(default=0.0)),
                ('reading', models.JSONField(null=True)),
                ('error', models.JSONField(null=True)),
                ('claim', models.CharField(blank=True, default='', max_length=40)),
                ('claimed_at', models.DateTimeField(null=True)),
                ('attempts', models.PositiveIntegerField(default=0)),
                ('created_at', models.DateTimeField()),
                ('dataset', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='jobs.dataset')),
                ('organisation', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='uploads', to='accounts.organisation')),
                ('uploaded_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('zone', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='fleet.zone')),
            ],
            options={
                'indexes': [models.Index(fields=['status', 'created_at'], name='jobs_upload_waiting')],
                'constraints': [models.UniqueConstraint(fields=('organisation', 'key'), name='jobs_upload_key_once')],
            },
        ),
    ]
