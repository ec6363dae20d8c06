"""`holdfast user`: the password file of a broker.

A password comes from a prompt, or from standard input when that is no terminal; never from an argument, which
everybody on the machine could read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import ConfigError, Problem

user = typer.Typer(
    no_args_is_help=True,
    help="Write the password file that a security file names. A running broker reads it on SIGHUP.",
)

File = Annotated[Path, typer.Option("--file", metavar="FILE", help="The password file.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The user.")]


@user.command()
def add(file: File, name: Name) -> None:
    """Add a user, or give one another password.

    \b
    holdfast user add --file users alice
    holdfast user add --file users alice < alice.password

    Asks for the password twice; from a pipe it is the first line.

    Exits with 0, or with 2 if the name, the password or the file will not do.
    """
    from holdfast.security.users import change_users, hash_password, problem_of_name

    why = problem_of_name(name)
    if why:
        raise ConfigError("holdfast user add", [Problem("NAME", f"found {name!r}; {why}")])
    stored = hash_password(read_password(twice=True))
    with change_users(file) as users:
        known = name in users
        users[name] = stored
    typer.echo(f"{'changed' if known else 'added'} {name}; a running broker reads it on SIGHUP")


@user.command()
def remove(file: File, name: Name) -> None:
    """Remove a user. A running broker disconnects it on SIGHUP.

    \b
    holdfast user remove --file users alice

    Exits with 0, or with 2 if there is no such user or file.
    """
    from holdfast.security.users import change_users

    check_there(file)
    with change_users(file) as users:
        if users.pop(name, None) is None:
            raise ConfigError(str(file), [Problem("NAME", f"there is no user {name!r}")])
    typer.echo(f"removed {name}; a running broker disconnects it on SIGHUP")


@user.command("list")
def list_users(file: File) -> None:
    """List the users, one on each line.

    \b
    holdfast user list --file users

    Exits with 0, or with 2 if the file will not do.
    """
    from holdfast.security.users import load_users

    for name in sorted(load_users(file)):
        typer.echo(name)


@user.command()
def check(file: File, name: Name) -> None:
    """Say whether a password is a user's.

    \b
    holdfast user check --file users alice < alice.password

    Exits with 0 if it is, 1 if not, 2 if the file will not do.
    """
    from holdfast.security.users import load_users, verify

    users = load_users(file)
    if not verify(users.get(name), read_password(twice=False)):
        typer.echo("the user name or the password is wrong", err=True)
        raise typer.Exit(1)
    typer.echo("that is the password")


def check_there(file: Path) -> None:
    if not file.exists():
        raise ConfigError(str(file), [Problem("", "there is no such file")])


def read_password(*, twice: bool) -> bytes:
    """From a prompt that does not show it, or the first line of standard input."""
    from holdfast.security.users import PASSWORD_BYTES_MAX

    if sys.stdin.isatty():
        import getpass

        password = getpass.getpass("Password: ")
        if twice and getpass.getpass("Again: ") != password:
            raise ConfigError("holdfast user", [Problem("password", "the two are not the same")])
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    encoded = password.encode()
    if not 1 <= len(encoded) <= PASSWORD_BYTES_MAX:
        raise ConfigError(
            "holdfast user", [Problem("password", f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")]
        )
    return encoded
