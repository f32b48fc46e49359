"""Real clients on real processes, whose history the simulation's checker judges (`support.simulation.checker`).

Members of a share group run in processes of their own, which a test may kill, and send each event of theirs to the
test before they go on; producers run in threads. `run` puts the events together with what the logs hold in the end.
What is between leaders and gateways is not seen here: those rules have the simulation, and the audit of the leaders'
delivery history (`support.clients.delivery_history`).
"""
