/*
 * UCX: tagged messages over its shared-memory transport. With cma, the default, UCX is slower
 * (docs/results/baseline.md); UCX_TLS chooses otherwise. Receives are posted ahead. A wait makes
 * progress for a while, then arms the worker and sleeps on its descriptor, as the documentation of
 * ucp_worker_arm shows.
 */
#include "hex.h"
#include "peer.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <ucp/api/ucp.h>

enum { TAG = 1, SPINS = 500, ADDRESS_BYTES_MAX = 4000, SLEEP_MS = 250 };

struct slot {
    char *bytes;
    void *request; /* NULL when nothing is under way */
};

struct peer {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h ep;
    int event_fd;
    long spin_ns;
    struct timespec since;
    size_t message_bytes, depth;
    struct slot *sends, *recvs;
    size_t next_send, next_recv;
};

static char error[256];

static int fail(const char *what, ucs_status_t status) {
    snprintf(error, sizeof error, "%s: %s", what, ucs_status_string(status));
    return -1;
}

const char *peer_error(void) { return error; }

static ucs_status_t open_context(struct peer *peer) {
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
    };
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return status;
    if (getenv("UCX_TLS") == NULL)
        ucp_config_modify(config, "TLS", "posix,self");
    status = ucp_init(&params, config, &peer->context);
    ucp_config_release(config);
    return status;
}

static ucs_status_t open_worker(struct peer *peer) {
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    ucs_status_t status = ucp_worker_create(peer->context, &params, &peer->worker);
    if (status != UCS_OK)
        return status;
    return ucp_worker_get_efd(peer->worker, &peer->event_fd);
}

static struct slot *slots(size_t depth, size_t bytes) {
    struct slot *made = calloc(depth, sizeof *made);
    for (size_t i = 0; made != NULL && i < depth; i++)
        if (posix_memalign((void **)&made[i].bytes, 4096, bytes) != 0)
            return NULL;
        else
            memset(made[i].bytes, 0, bytes);
    return made;
}

struct peer *peer_open(size_t message_bytes, size_t depth, long spin_ns) {
    struct peer *peer = calloc(1, sizeof *peer);
    ucs_status_t status = UCS_ERR_NO_MEMORY;
    if (peer == NULL)
        return fail("peer", status), NULL;
    peer->spin_ns = spin_ns;
    peer->message_bytes = message_bytes;
    peer->depth = depth;
    peer->sends = slots(depth, message_bytes);
    peer->recvs = slots(depth, message_bytes);
    if (peer->sends == NULL || peer->recvs == NULL)
        return fail("buffers", status), NULL;
    if ((status = open_context(peer)) != UCS_OK)
        return fail("ucp_init (shared memory only)", status), NULL;
    if ((status = open_worker(peer)) != UCS_OK)
        return fail("ucp_worker_create with wake-up", status), NULL;
    return peer;
}

int peer_address(struct peer *peer, char *text, size_t len) {
    ucp_address_t *address;
    size_t bytes;
    ucs_status_t status = ucp_worker_get_address(peer->worker, &address, &bytes);
    if (status != UCS_OK)
        return fail("ucp_worker_get_address", status);
    int rc = to_hex((unsigned char *)address, bytes, text, len);
    ucp_worker_release_address(peer->worker, address);
    return rc == 0 ? 0 : fail("address", UCS_ERR_BUFFER_TOO_SMALL);
}

static int post(struct peer *peer, size_t at) {
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
    void *request = ucp_tag_recv_nbx(peer->worker, peer->recvs[at].bytes, peer->message_bytes, TAG,
                                     (ucp_tag_t)-1, &param);
    if (UCS_PTR_IS_ERR(request))
        return fail("ucp_tag_recv_nbx", UCS_PTR_STATUS(request));
    peer->recvs[at].request = request;
    return 0;
}

int peer_connect(struct peer *peer, const char *text) {
    unsigned char bytes[ADDRESS_BYTES_MAX];
    if (from_hex(text, bytes, sizeof bytes) < 0)
        return fail("address", UCS_ERR_INVALID_ADDR);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address = (ucp_address_t *)bytes,
    };
    ucs_status_t status = ucp_ep_create(peer->worker, &params, &peer->ep);
    if (status != UCS_OK)
        return fail("ucp_ep_create", status);
    for (size_t i = 0; i < peer->depth; i++)
        if (post(peer, i) != 0)
            return -1;
    return 0;
}

/* Tells whether a wait without progress goes on without a sleep. */
static int spins_on(struct peer *peer, unsigned idle) {
    struct timespec now;
    if (peer->spin_ns < 0)
        return idle < SPINS;
    if (peer->spin_ns == 0)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (idle == 1)
        peer->since = now;
    sched_yield();
    return (now.tv_sec - peer->since.tv_sec) * 1000000000L + now.tv_nsec - peer->since.tv_nsec < peer->spin_ns;
}

/* Makes progress; sleeps when there is none for a while. */
static int progress(struct peer *peer, unsigned *idle) {
    if (ucp_worker_progress(peer->worker) != 0) {
        *idle = 0;
        return 0;
    }
    if (spins_on(peer, ++*idle))
        return 0;
    *idle = 0;
    ucs_status_t status = ucp_worker_arm(peer->worker);
    if (status == UCS_ERR_BUSY)
        return 0;
    if (status != UCS_OK)
        return fail("ucp_worker_arm", status);
    struct pollfd fd = {.fd = peer->event_fd, .events = POLLIN};
    poll(&fd, 1, SLEEP_MS);
    return 0;
}

static int wait_for(struct peer *peer, struct slot *slot) {
    ucs_status_t status;
    unsigned idle = 0;
    while ((status = ucp_request_check_status(slot->request)) == UCS_INPROGRESS)
        if (progress(peer, &idle) != 0)
            return -1;
    return status == UCS_OK ? 0 : fail("request", status);
}

void *peer_reserve(struct peer *peer) {
    struct slot *slot = &peer->sends[peer->next_send % peer->depth];
    if (slot->request != NULL) {
        if (wait_for(peer, slot) != 0)
            return NULL;
        ucp_request_free(slot->request);
        slot->request = NULL;
    }
    return slot->bytes;
}

int peer_send(struct peer *peer, size_t len) {
    struct slot *slot = &peer->sends[peer->next_send++ % peer->depth];
    ucp_request_param_t param = {.op_attr_mask = 0};
    void *request = ucp_tag_send_nbx(peer->ep, slot->bytes, len, TAG, &param);
    if (UCS_PTR_IS_ERR(request))
        return fail("ucp_tag_send_nbx", UCS_PTR_STATUS(request));
    slot->request = request;
    return 0;
}

int peer_flush(struct peer *peer) {
    for (size_t i = 0; i < peer->depth; i++) {
        struct slot *slot = &peer->sends[i];
        if (slot->request == NULL)
            continue;
        if (wait_for(peer, slot) != 0)
            return -1;
        ucp_request_free(slot->request);
        slot->request = NULL;
    }
    /* A message that fitted nowhere yet may wait in the worker. */
    ucp_request_param_t param = {.op_attr_mask = 0};
    struct slot all = {.request = ucp_worker_flush_nbx(peer->worker, &param)};
    if (all.request == NULL)
        return 0;
    if (UCS_PTR_IS_ERR(all.request))
        return fail("ucp_worker_flush_nbx", UCS_PTR_STATUS(all.request));
    int rc = wait_for(peer, &all);
    ucp_request_free(all.request);
    return rc;
}

ssize_t peer_recv(struct peer *peer, const void **message) {
    struct slot *slot = &peer->recvs[peer->next_recv % peer->depth];
    if (wait_for(peer, slot) != 0)
        return -1;
    ucp_tag_recv_info_t info;
    ucs_status_t status = ucp_tag_recv_request_test(slot->request, &info);
    if (status != UCS_OK)
        return fail("ucp_tag_recv_request_test", status);
    *message = slot->bytes;
    return (ssize_t)info.length;
}

int peer_release(struct peer *peer) {
    size_t at = peer->next_recv++ % peer->depth;
    ucp_request_free(peer->recvs[at].request);
    peer->recvs[at].request = NULL;
    return post(peer, at);
}

static void cancel(struct peer *peer, struct slot *slots) {
    for (size_t i = 0; i < peer->depth; i++) {
        if (slots[i].request != NULL) {
            ucp_request_cancel(peer->worker, slots[i].request);
            ucp_request_free(slots[i].request);
        }
    }
}

void peer_close(struct peer *peer) {
    cancel(peer, peer->recvs);
    cancel(peer, peer->sends);
    ucp_worker_destroy(peer->worker);
    ucp_cleanup(peer->context);
    for (size_t i = 0; i < peer->depth; i++) {
        free(peer->sends[i].bytes);
        free(peer->recvs[i].bytes);
    }
    free(peer->sends);
    free(peer->recvs);
    free(peer);
}
