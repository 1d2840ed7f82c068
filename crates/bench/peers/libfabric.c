/*
 * libfabric: messages over its shared-memory provider, reliable datagrams, receives posted ahead. The
 * provider has nothing to sleep on, so a wait reads the completion queue and yields in between. With CMA, the
 * default, libfabric is slower (docs/results/baseline.md); FI_SHM_DISABLE_CMA=0 enables it.
 */
#include "hex.h"
#include "peer.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <sched.h>
#include <stdlib.h>

enum { ADDRESS_BYTES_MAX = 512, SPINS = 50 };

struct slot {
    struct fi_context context; /* first: completions name the slot by it */
    char *bytes;
    size_t len;
    int pending;
};

struct peer {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *sent, *received;
    struct fid_av *av;
    struct fid_ep *ep;
    struct fid_mr *mr;
    fi_addr_t other;
    size_t message_bytes, depth;
    char *memory;
    struct slot *sends, *recvs;
    size_t next_send, next_recv;
};

static char error[256];

static int fail(const char *what, ssize_t rc) {
    snprintf(error, sizeof error, "%s: %s", what, fi_strerror((int)-rc));
    return -1;
}

const char *peer_error(void) { return error; }

static int find(struct peer *peer) {
    setenv("FI_SHM_DISABLE_CMA", "1", 0);
    struct fi_info *hints = fi_allocinfo();
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->fabric_attr->prov_name = strdup("shm");
    int rc = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &peer->info);
    fi_freeinfo(hints);
    return rc == 0 ? 0 : fail("fi_getinfo (shm)", rc);
}

static int open_objects(struct peer *peer) {
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE, .size = 4 * peer->depth};
    struct fi_av_attr av = {.type = FI_AV_UNSPEC, .count = 2};
    int rc;
    if ((rc = fi_fabric(peer->info->fabric_attr, &peer->fabric, NULL)) != 0)
        return fail("fi_fabric", rc);
    if ((rc = fi_domain(peer->fabric, peer->info, &peer->domain, NULL)) != 0)
        return fail("fi_domain", rc);
    if ((rc = fi_cq_open(peer->domain, &cq, &peer->sent, NULL)) != 0 ||
        (rc = fi_cq_open(peer->domain, &cq, &peer->received, NULL)) != 0)
        return fail("fi_cq_open", rc);
    if ((rc = fi_av_open(peer->domain, &av, &peer->av, NULL)) != 0)
        return fail("fi_av_open", rc);
    if ((rc = fi_endpoint(peer->domain, peer->info, &peer->ep, NULL)) != 0)
        return fail("fi_endpoint", rc);
    if ((rc = fi_ep_bind(peer->ep, &peer->sent->fid, FI_TRANSMIT)) != 0 ||
        (rc = fi_ep_bind(peer->ep, &peer->received->fid, FI_RECV)) != 0 ||
        (rc = fi_ep_bind(peer->ep, &peer->av->fid, 0)) != 0 || (rc = fi_enable(peer->ep)) != 0)
        return fail("fi_enable", rc);
    return 0;
}

static int allocate(struct peer *peer) {
    size_t bytes = 2 * peer->depth * peer->message_bytes;
    peer->sends = calloc(peer->depth, sizeof *peer->sends);
    peer->recvs = calloc(peer->depth, sizeof *peer->recvs);
    if (peer->sends == NULL || peer->recvs == NULL ||
        posix_memalign((void **)&peer->memory, 4096, bytes) != 0)
        return fail("buffers", -FI_ENOMEM);
    memset(peer->memory, 0, bytes);
    for (size_t i = 0; i < peer->depth; i++) {
        peer->sends[i].bytes = peer->memory + i * peer->message_bytes;
        peer->recvs[i].bytes = peer->memory + (peer->depth + i) * peer->message_bytes;
    }
    if (peer->info->domain_attr->mr_mode & FI_MR_LOCAL) {
        int rc = fi_mr_reg(peer->domain, peer->memory, bytes, FI_SEND | FI_RECV, 0, 1, 0, &peer->mr, NULL);
        if (rc != 0)
            return fail("fi_mr_reg", rc);
    }
    return 0;
}

struct peer *peer_open(size_t message_bytes, size_t depth, long spin_ns) {
    if (spin_ns == 0) {
        snprintf(error, sizeof error, "the shm provider has nothing to sleep on");
        return NULL;
    }
    struct peer *peer = calloc(1, sizeof *peer);
    if (peer == NULL)
        return fail("peer", -FI_ENOMEM), NULL;
    peer->message_bytes = message_bytes;
    peer->depth = depth;
    if (find(peer) != 0 || open_objects(peer) != 0 || allocate(peer) != 0)
        return NULL;
    return peer;
}

int peer_address(struct peer *peer, char *text, size_t len) {
    unsigned char name[ADDRESS_BYTES_MAX];
    size_t bytes = sizeof name;
    int rc = fi_getname(&peer->ep->fid, name, &bytes);
    if (rc != 0)
        return fail("fi_getname", rc);
    return to_hex(name, bytes, text, len) == 0 ? 0 : fail("address", -FI_ETOOSMALL);
}

/* Marks the slots whose completions are in `cq`; yields if there are none. */
static int reap(struct fid_cq *cq, unsigned *idle) {
    struct fi_cq_msg_entry entries[16];
    ssize_t n = fi_cq_read(cq, entries, 16);
    if (n == -FI_EAGAIN) {
        if (++*idle % SPINS == 0)
            sched_yield();
        return 0;
    }
    if (n == -FI_EAVAIL) {
        struct fi_cq_err_entry failed = {0};
        fi_cq_readerr(cq, &failed, 0);
        return fail("completion", -failed.err);
    }
    if (n < 0)
        return fail("fi_cq_read", n);
    for (ssize_t i = 0; i < n; i++) {
        struct slot *slot = entries[i].op_context;
        slot->len = entries[i].len;
        slot->pending = 0;
    }
    return 0;
}

static int post(struct peer *peer, struct slot *slot) {
    void *desc = peer->mr != NULL ? fi_mr_desc(peer->mr) : NULL;
    ssize_t rc;
    unsigned idle = 0;
    slot->pending = 1;
    while ((rc = fi_recv(peer->ep, slot->bytes, peer->message_bytes, desc, FI_ADDR_UNSPEC,
                         &slot->context)) == -FI_EAGAIN)
        if (reap(peer->received, &idle) != 0)
            return -1;
    return rc == 0 ? 0 : fail("fi_recv", rc);
}

int peer_connect(struct peer *peer, const char *text) {
    unsigned char name[ADDRESS_BYTES_MAX];
    if (from_hex(text, name, sizeof name) < 0)
        return fail("address", -FI_EINVAL);
    int rc = fi_av_insert(peer->av, name, 1, &peer->other, 0, NULL);
    if (rc != 1)
        return fail("fi_av_insert", rc < 0 ? rc : -FI_EINVAL);
    for (size_t i = 0; i < peer->depth; i++)
        if (post(peer, &peer->recvs[i]) != 0)
            return -1;
    return 0;
}

static int wait_for(struct peer *peer, struct slot *slot, struct fid_cq *cq) {
    (void)peer;
    for (unsigned idle = 0; slot->pending;)
        if (reap(cq, &idle) != 0)
            return -1;
    return 0;
}

void *peer_reserve(struct peer *peer) {
    struct slot *slot = &peer->sends[peer->next_send % peer->depth];
    return wait_for(peer, slot, peer->sent) == 0 ? slot->bytes : NULL;
}

int peer_send(struct peer *peer, size_t len) {
    struct slot *slot = &peer->sends[peer->next_send++ % peer->depth];
    void *desc = peer->mr != NULL ? fi_mr_desc(peer->mr) : NULL;
    ssize_t rc;
    unsigned idle = 0;
    slot->pending = 1;
    while ((rc = fi_send(peer->ep, slot->bytes, len, desc, peer->other, &slot->context)) == -FI_EAGAIN)
        if (reap(peer->sent, &idle) != 0)
            return -1;
    return rc == 0 ? 0 : fail("fi_send", rc);
}

int peer_flush(struct peer *peer) {
    for (size_t i = 0; i < peer->depth; i++)
        if (wait_for(peer, &peer->sends[i], peer->sent) != 0)
            return -1;
    return 0;
}

ssize_t peer_recv(struct peer *peer, const void **message) {
    struct slot *slot = &peer->recvs[peer->next_recv % peer->depth];
    if (wait_for(peer, slot, peer->received) != 0)
        return -1;
    *message = slot->bytes;
    return (ssize_t)slot->len;
}

int peer_release(struct peer *peer) {
    return post(peer, &peer->recvs[peer->next_recv++ % peer->depth]);
}

void peer_close(struct peer *peer) {
    fi_close(&peer->ep->fid);
    if (peer->mr != NULL)
        fi_close(&peer->mr->fid);
    fi_close(&peer->av->fid);
    fi_close(&peer->sent->fid);
    fi_close(&peer->received->fid);
    fi_close(&peer->domain->fid);
    fi_close(&peer->fabric->fid);
    fi_freeinfo(peer->info);
    free(peer->memory);
    free(peer->sends);
    free(peer->recvs);
    free(peer);
}
