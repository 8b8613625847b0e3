"""The Python client, from a first cell to files. The tests run this file and compare its output with client.out."""

from ingle import CellFailed, Client

# Finds `ingle serve` on this machine, or starts one that ends with this program.
with Client() as client, client.session("example") as session:
    # State stays from call to call.
    session.run("total = 20")
    print(session.run("total + 22").text)

    # A result holds the exception of its cell. `raise_for_error` raises it.
    failed = session.run("print('before'); 1 / 0")
    print(failed.status, failed.error.name, repr(failed.stdout))
    try:
        failed.raise_for_error()
    except CellFailed as error:
        print(str(error).splitlines()[-1])

    # Print output while the cell runs.
    session.run("for n in range(3): print('line', n)", on_stdout=lambda text: print(text, end=""))

    # The cell asks for input, and the program answers.
    asked = session.run("name = input('who? ')")
    print(asked.status, repr(asked.prompt))
    session.input("Ada")
    print(session.run("'hello ' + name").text)

    # `wait` limits the call, not the cell.
    running = session.run("while True: pass", wait=0.2)
    print(running.status)
    print(session.interrupt().status)

    # Write a file into the session's folder.
    session.write_file("data/numbers.txt", "1 2 3")
    print(session.run("sum(map(int, open('data/numbers.txt').read().split()))").text)
