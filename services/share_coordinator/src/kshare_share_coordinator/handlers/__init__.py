"""Handlers of the share coordinator's RPCs, one file each: messages to operations, results to messages.

`operation_service` carries the operations out; `results` has the parts that several answers share.
"""
