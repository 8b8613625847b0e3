"""Cells that change a folder in every way, for tests that bring the folder back."""

SETUP = """
import mmap, os, shutil, sqlite3
from pathlib import Path
os.makedirs('sub/empty')
for name in ('a', 'b', 'sub/c'):
    Path(name).write_text(name * 10)
os.symlink('a', 'link')
"""
"""Makes a folder with files, folders and a link."""

CHANGES = {
    "created": ("Path('new').write_text('new'); os.makedirs('x/y'); Path('x/y/z').write_text('z')", "True"),
    "changed": ("Path('a').write_text('A' * 10)", "Path('a').read_text() == 'a' * 10"),
    "shortened": ("os.truncate('a', 3)", "Path('a').read_text() == 'a' * 10"),
    "deleted": ("os.remove('a'); shutil.rmtree('sub')", "Path('sub/c').read_text() == 'sub/c' * 10"),
    "renamed": ("os.rename('a', 'other'); os.rename('sub', 'sup')", "Path('a').read_text() == 'a' * 10"),
    "swapped": ("os.rename('a', 't'); os.rename('b', 'a'); os.rename('t', 'b')", "Path('b').read_text() == 'b' * 10"),
    "made executable": ("os.chmod('a', 0o755)", "not os.access('a', os.X_OK)"),
    "linked": ("os.remove('link'); os.symlink('b', 'link')", "os.readlink('link') == 'a'"),
    "turned into a folder": ("os.remove('a'); os.mkdir('a'); Path('a/in').touch()", "os.path.isfile('a')"),
    "turned into a link": ("shutil.rmtree('sub'); os.symlink('/etc', 'sub')", "not os.path.islink('sub')"),
    "hard linked": ("os.link('a', 'hard'); Path('hard').write_text('!')", "Path('a').read_text() == 'a' * 10"),
    "locked": ("os.chmod('sub', 0o500); os.chmod('a', 0)", "Path('a').read_text() == 'a' * 10"),
}
"""By kind: a cell that changes the folder, and an expression that is true as long as it has not."""

OPEN = {
    "open for writing": (
        "f = open('log', 'w'); _ = f.write('one\\n'); f.flush()",
        "f.write('two\\n'); f.flush()",
        "f.write('three\\n'); f.flush(); print(Path('log').read_text())",
        "one\nthree",
    ),
    "open for appending": (
        "f = open('log', 'a'); _ = f.write('one\\n'); f.flush()",
        "f.write('two\\n'); f.flush()",
        "f.write('three\\n'); f.flush(); print(Path('log').read_text())",
        "one\nthree",
    ),
    "open for reading": (
        "Path('log').write_text('one\\ntwo\\n'); f = open('log'); _ = f.readline()",
        "f.read(); Path('log').write_text('other')",
        "print(f.read())",
        "two",
    ),
    "unflushed": (
        "f = open('log', 'w'); _ = f.write('one\\n')",
        "f.write('two\\n'); f.close()",
        "f.write('three\\n'); f.flush(); print(Path('log').read_text())",
        "one\nthree",
    ),
    "open and deleted since": (
        "f = open('log', 'w+'); _ = f.write('one\\n'); f.flush()",
        "os.remove('log')",
        "f.write('three\\n'); f.flush(); print(Path('log').read_text())",
        "one\nthree",
    ),
    "open and replaced since": (
        "f = open('log', 'w+'); _ = f.write('one\\n'); f.flush()",
        "Path('other').write_text('!'); os.rename('other', 'log')",
        "f.write('three\\n'); f.flush(); print(Path('log').read_text())",
        "one\nthree",
    ),
    "open twice by one description": (
        "f = open('log', 'wb', buffering=0); g = os.dup(f.fileno()); _ = f.write(b'one\\n')",
        "f.write(b'two\\n')",
        "f.write(b'three\\n'); os.write(g, b'four\\n'); print(Path('log').read_text())",
        "one\nthree\nfour",
    ),
    "mapped": (
        "Path('log').write_bytes(b'a' * 5000); f = open('log', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0] = 98",
        "m[1] = 99; Path('b').write_text('other')",
        "print(m[:3], Path('log').read_bytes()[:3]); m[2] = 100; print(Path('log').read_bytes()[:3])",
        "b'baa' b'baa'\nb'bad'",
    ),
    "a database with an open connection": (
        "db = sqlite3.connect('db'); db.execute('create table t (x)'); "
        "db.execute('insert into t values (1)'); db.commit()",
        "db.execute('insert into t values (2)'); db.commit()",
        "db.execute('insert into t values (3)'); db.commit(); print(db.execute('select x from t').fetchall(), "
        "sqlite3.connect('db').execute('pragma integrity_check').fetchall())",
        "[(1,), (3,)] [('ok',)]",
    ),
    "a database with a log and an open connection": (
        "db = sqlite3.connect('db'); db.execute('pragma journal_mode=wal'); db.execute('create table t (x)'); "
        "db.execute('insert into t values (1)'); db.commit()",
        "db.execute('insert into t values (2)'); db.commit()",
        "db.execute('insert into t values (3)'); db.commit(); print(db.execute('select x from t').fetchall(), "
        "sqlite3.connect('db').execute('pragma integrity_check').fetchall())",
        "[(1,), (3,)] [('ok',)]",
    ),
    "the working directory removed since": (
        "os.chdir('sub')",
        "os.chdir('..'); shutil.rmtree('sub')",
        "print(os.getcwd().endswith('/sub'), Path('c').read_text())",
        "True " + "sub/c" * 10,
    ),
}
"""By kind: a cell that opens files, one that changes them, one that goes on after a rollback, and what that prints."""

CHANGE_MANY = "import shutil\nshutil.rmtree('7')\nopen('8/8', 'w').write('!')"
"""Removes a hundred of many files, and changes one."""

MANY = """
import os
for d in range(20):
    os.mkdir(str(d))
    for f in range(100):
        with open(f'{d}/{f}', 'w') as file:
            _ = file.write(f'{d} {f}')
"""
"""Makes 2,000 small files."""
