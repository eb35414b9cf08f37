# SPDX-License-Identifier: Apache-2.0
"""What the operators share that run a Spark job of ours through the Spark connection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook

from airflow_changefeed.hooks.changefeed_fields import NamesConnections
from airflow_changefeed.hooks.changefeed_job import pids_to_watch
from airflow_changefeed.hooks.changefeed_secrets import private_files
from airflow_changefeed.hooks.changefeed_spark import (
    ChangefeedSparkSubmitHook,
    check_connection,
    kubernetes_named,
    local_environment,
)

#: Arguments of the provider's operator that a job of ours sets itself.
OWN = ("application", "application_args", "java_class")
#: Templated fields of the provider's operator that are left to whoever writes the DAG.
TEMPLATED = tuple(name for name in SparkSubmitOperator.template_fields if name not in OWN)


def take_own(kwargs: dict[str, Any], job_name: str) -> list[str]:
    """
    Take out of an operator's arguments what it sets itself, and name its job.

    :param job_name: where neither the task nor ``default_args`` gives one.
    :return: names of arguments that were given and cannot be.
    """
    if "name" not in (kwargs.get("default_args") or {}):
        kwargs.setdefault("name", job_name)
    return [name for name in OWN if kwargs.pop(name, None) is not None]


class ChangefeedSparkOperator(NamesConnections, SparkSubmitOperator):
    """Runs a job of ours: with its package, its processes watched, its files private."""

    def _prepare(self, job: str, files: Mapping[str, Path]) -> None:
        """
        Set what the provider's operator runs; only paths, since arguments can be read by everybody.

        :param job: name of the module in ``spark``.
        :param files: the job's arguments.
        """
        from airflow_changefeed.spark.archive import package_archive

        self.application = str(Path(__file__).parents[1] / "spark" / f"{job}.py")
        self.application_args = [text for name, file in files.items() for text in (f"--{name}", str(file))]
        for pid in pids_to_watch():
            self.application_args += ["--watch-pid", str(pid)]
        self.conf = {**(self.conf or {})}
        # The task's log is for the job's progress, not for a hundred lines of Spark's about itself.
        self.conf.setdefault("spark.log.level", "WARN")
        self.conf.setdefault("spark.ui.showConsoleProgress", "false")
        if self._get_hook().is_local:
            self.env_vars = local_environment(self.env_vars)
            # A page that nobody looks at, on a port of all addresses.
            self.conf.setdefault("spark.ui.enabled", "false")
        # Also for a local job: spark-submit's Python need not see what this one was given to see.
        self.py_files = ",".join(filter(None, [self.py_files, package_archive()]))
        # DAG-wide defaults for other Spark tasks may name a class; ours is a Python job.
        self._java_class = None
        # The provider makes it when it has added what is its own, as OpenLineage's properties.
        self._hook = None

    def _check_spark(self) -> None:
        check_connection(BaseHook.get_connection, self._conn_id)
        self._get_hook().check()

    def _get_hook(self) -> ChangefeedSparkSubmitHook:
        with private_files(), kubernetes_named():
            return ChangefeedSparkSubmitHook.of(super()._get_hook())

    def on_kill(self) -> None:
        """Stop the Spark job, if one runs."""
        if self._hook is not None:
            self._hook.on_kill()
