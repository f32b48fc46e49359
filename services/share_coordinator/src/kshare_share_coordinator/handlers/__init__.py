"""One file for each RPC of the share coordinator: messages to operations, results to messages.

`operation_service` carries the operations out; `results` has what several answers share.
"""
