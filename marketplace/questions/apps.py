from django.apps import AppConfig


class QuestionsConfig(AppConfig):
    name = "marketplace.questions"
    label = "questions"
