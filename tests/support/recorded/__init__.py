"""Real clients on real processes, whose history the simulation's checker judges (`support.simulation.checker`).

Members of a share group run in processes of their own, which a test may kill, and send each event of theirs to the
test before they go on; producers run in threads. `run` puts the events together with what the logs hold in the end
(`logs`), and with what they held before each fault.

The network between the roles is not tapped. So the checker's rules of leaders, leases and stored states do not apply.
In their place are the rules that clients' events alone can prove broken (`client_rules`), the audit of the leaders'
delivery history (`kshare.audit`), which each run reads, and the lines at level ERROR and tracebacks of all processes
(`support.clusters.role_logs`). `stalls` bounds how long a partition delivers nothing after a fault.
"""
