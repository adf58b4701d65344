"""A test run leaves alone what the machine has of ours, installed and running: what it opens there fails the run.

What is ours on a machine has a name that begins with ``cri-resmgr``, in /etc, /etc/default, /run or /var/lib. Two
parts look. ``hook.py`` is in every Python of the virtual environment (a line in its site-packages loads it) and sees
what such a Python asks for, also where there is nothing of that name: files opened, made and removed, sockets served
and connected to. ``watch.py`` asks the kernel (fanotify, root only) what any program does with what is there.
Neither sees the connection of another program to a socket, nor, without root, another program at all.
"""
