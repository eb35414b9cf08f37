# SPDX-License-Identifier: Apache-2.0
"""``@task.changefeed``: the decorated function is called for each event of a feed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_changefeed.operators.consume import ChangefeedConsumeOperator
from airflow_changefeed.version_compat import AIRFLOW_V_3_1_PLUS

if TYPE_CHECKING:
    from airflow.sdk import Context

#: The parameters of a handler that a consumer gives: the event, or events, and the connection.
_GIVEN = 2


class _OwnParameters:
    """A handler as a DAG calls it: without the parameters that the consumer gives."""

    def __init__(self, function: Callable[..., object]) -> None:
        functools.update_wrapper(self, function)
        signature = inspect.signature(function)
        names = list(signature.parameters.values())
        places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if len(names) < _GIVEN or any(one.kind not in places for one in names[:_GIVEN]):
            raise TypeError(
                f"@task.changefeed: {function.__name__}{signature} must take the event and the connection "
                "as its first two parameters"
            )
        self.function = function
        self.__signature__ = signature.replace(parameters=names[_GIVEN:])

    def __call__(self, *arguments: Any, **named: Any) -> object:
        """Call the function."""
        return self.function(*arguments, **named)


class _ChangefeedDecoratedOperator(DecoratedOperator, ChangefeedConsumeOperator):
    custom_operator_name = "@task.changefeed"
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *ChangefeedConsumeOperator.template_fields,
    )
    if not AIRFLOW_V_3_1_PLUS:
        # DecoratedOperator hands it on, and nothing uses it.
        xcom_push = None

    def __init__(
        self,
        *,
        python_callable: Callable[..., object],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        is_own = isinstance(python_callable, _OwnParameters)
        own = python_callable if is_own else _OwnParameters(python_callable)
        super().__init__(
            python_callable=own,
            op_args=op_args,
            op_kwargs=op_kwargs,
            kwargs_to_upstream={"handler": own},
            **kwargs,
        )

    def bound_handler(self, context: Context) -> Callable[..., object]:
        """Return the function with the DAG's own arguments, and those of the run's context that it names."""
        named = self.python_callable.__signature__.parameters  # type: ignore[attr-defined] # ours
        given: Mapping[str, Any] = {**context}
        of_context = {name: given[name] for name in named if name in given and name not in self.op_kwargs}
        function, arguments = self.python_callable.function, tuple(self.op_args)  # type: ignore[attr-defined] # ours

        def handler(event: Any, connection: Any) -> object:
            return function(event, connection, *arguments, **of_context, **self.op_kwargs)

        # For messages; not as a wrapper, whose signature would be the function's.
        handler.__qualname__ = function.__qualname__
        return handler


def changefeed_task(
    python_callable: Callable[..., object] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """
    Make a function the handler of a consumer's events: ``@task.changefeed(feed=..., consumer=...)``.

    Its first two parameters are the event (with ``batch``, the list of events) and the connection of their
    transaction; further parameters are given by the DAG, or named after keys of the run's context.

    :param kwargs: those of ``ChangefeedConsumeOperator``.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_ChangefeedDecoratedOperator,
        **kwargs,
    )
