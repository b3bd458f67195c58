"""A server that asks every node who it is, once a round."""

import time

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    for number in range(1, context.run_config["rounds"] + 1):
        nodes = list(grid.get_node_ids())
        asked = [Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY) for node in nodes]
        waiting = set(grid.push_messages(asked))
        replies = []
        while waiting:
            found = list(grid.pull_messages(waiting))
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
            replies += found
            time.sleep(0.2)
        names = sorted(reply.content["named"]["partition"] for reply in replies)
        print(f"round {number}: {len(nodes)} nodes, answers from partitions {names}", flush=True)
        time.sleep(context.run_config["pause"])
    if context.run_config["fail"]:
        raise RuntimeError("the tiny app fails as asked")
