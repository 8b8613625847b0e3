"""Fence around an agent that is cut off: its sessions end before another node may take them over.

An agent renews its lease at the head and at the store. `watchdog` runs above the agent: without a renewal for three
seconds it stops the sessions, then kills them. `lease` is the agent's side. `takeover` is the gateway's: sessions of
an agent are restored elsewhere after four seconds of silence at both, or at once if the agent is known to have ended.
"""
