"""Sources of a made-up HiRadixCache that can be lifted, in an earlier and a later dialect."""

CONTROLLER = """
from typing import List, NamedTuple
class HiCacheAck(NamedTuple):
    start_event: object
    finish_event: object
    node_ids: List[int]
"""
KEYS = """
class RadixKey:
    def __init__(self, token_ids, extra_key=None):
        self.token_ids = token_ids
        self.extra_key = extra_key
    def __len__(self):
        return len(self.token_ids)
"""
HEAD = """
import time
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

class HiRadixCache(RadixCache):
    def __init__(self, params):
        self.ongoing_write_through = {}
        self.ongoing_load_back = {}
        self.ongoing_prefetch = {}
        self.ongoing_backup = {}
        self.enable_storage = configured().storage

    def check_hicache_events(self):
        self.writing_check()
        self.loading_check()
        if self.enable_storage:
            self.drain_storage_control_queues()

    def loading_check(self):
        acks = self.cache_controller.ack_load_queue
        while acks and acks[0].finish_event.query():
            for ack_id in acks.pop(0).node_ids:
                self.dec_lock_ref(self.ongoing_load_back.pop(ack_id))

    def unreached(self):
        return self.no_such_thing
"""
CONFIGURED = """
def configured():
    raise RuntimeError("no server, no configuration")
"""
EARLIER = """
    def writing_check(self, write_back=False):
        acks = self.cache_controller.ack_write_queue
        while acks and (write_back or acks[0].finish_event.query()):
            _, event, ack_ids = acks.pop(0)
            event.synchronize()
            for ack_id in ack_ids:
                node = self.ongoing_write_through.pop(ack_id)
                if not write_back:
                    self.dec_lock_ref(node)
                if self.enable_storage:
                    self.write_backup_storage(node)

    def write_backup_storage(self, node):
        controller = self.cache_controller
        operation = controller.write_storage(node.host_value, node.key, node.hash_value)
        self.ongoing_backup[operation] = node
        node.protect_host()

    def drain_storage_control_queues(self):
        controller = self.cache_controller
        while not controller.prefetch_revoke_queue.empty():
            request = controller.prefetch_revoke_queue.get()
            anchor, asked, pages, operation = self.ongoing_prefetch.pop(request)
            anchor.release_host()
            controller.prefetch_tokens_occupied -= len(asked)
        while not controller.host_mem_release_queue.empty():
            controller.mem_pool_host.free(controller.host_mem_release_queue.get())
        while not controller.ack_backup_queue.empty():
            self.ongoing_backup.pop(controller.ack_backup_queue.get().id).release_host()

    def check_prefetch_progress(self, request):
        anchor, asked, pages, operation = self.ongoing_prefetch[request]
        if self.prefetch_stop_policy == "timeout" and not self.is_prefetch_timeout(operation):
            return False
        done, hashes = self.cache_controller.terminate_prefetch(operation)
        key = RadixKey(token_ids=asked[:done], extra_key=anchor.key.extra_key)
        known = self._insert_helper_host(anchor, key, pages[:done], hashes)
        self.cache_controller.mem_pool_host.free(pages[:known])
        anchor.release_host()
        del self.ongoing_prefetch[request]
        return True

    def _insert_helper_host(self, node, key, host_value, hash_value):
        raise AssertionError("a tree of its own")

    def _prefetch_timeout_check_linear_func(self, operation):
        return time.monotonic() - operation.start_time > self.prefetch_timeout_base
"""
LATER = """
    def writing_check(self, write_back=False):
        acks = self.cache_controller.ack_write_queue
        while acks and acks[0].finish_event.query():
            for ack_id in acks.pop(0).node_ids:
                self._finish_write_through_ack(ack_id)

    def _track_write_through_node(self, node, backup_len):
        node.write_through_pending_id = node.id
        self.ongoing_write_through[node.id] = (node, backup_len, [node])

    def _replace_pending_write_through_node(self, old_node, new_nodes):
        ack_id = old_node.write_through_pending_id
        locked, backup_len, publish = self.ongoing_write_through[ack_id]
        at = [node is old_node for node in publish].index(True)
        publish[at : at + 1] = new_nodes

    def _finish_write_through_ack(self, ack_id):
        locked, backup_len, publish = self.ongoing_write_through.pop(ack_id)
        assert sum(len(node.key) for node in publish) == backup_len
        assert publish[-1] is locked
        for node in publish:
            self.kv_events.record_store(node)
        self.dec_lock_ref(locked)
"""


def files(cache: str = CONFIGURED + HEAD + EARLIER) -> dict[str, str]:
    """Path inside the package's ``srt`` -> text; ``cache`` is that of hiradix_cache.py."""
    return {
        "managers/cache_controller.py": CONTROLLER,
        "mem_cache/radix_cache.py": KEYS,
        "mem_cache/hiradix_cache.py": cache,
    }
