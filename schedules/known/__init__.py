"""The known schedules as constructors, under the same problem, evaluator and validator as the
searched ones.
"""
