/* The program of the paper's Listing 1, with the declarations that it leaves out. */
#include <arpa/inet.h>
#include <pd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROTOCOL 0
#define BACKLOG 16
#define DATA_LEN 4096

static void check(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, pd_errmsg());
        exit(1);
    }
}

static void server(struct sockaddr_in serv_addr) {
    int sid, acc_sid, ret;
    struct sockaddr_in cli_addr;
    socklen_t addr_len = sizeof(cli_addr);
    void *recv_buf;

    sid = pd_socket(AF_INET, SOCK_STREAM, PROTOCOL);
    check(sid >= 0, "socket");
    ret = pd_bind(sid, &serv_addr, sizeof(serv_addr));
    check(ret == 0, "bind");
    ret = pd_listen(sid, BACKLOG);
    check(ret == 0, "listen");
    acc_sid = pd_accept(sid, &cli_addr, &addr_len);
    check(acc_sid >= 0 && addr_len == sizeof(cli_addr), "accept");
    recv_buf = NULL;
    ret = pd_recv(acc_sid, DATA_LEN, &recv_buf);
    check(ret == DATA_LEN && recv_buf != NULL && memcmp(recv_buf, "PipeDevice", 11) == 0, "recv");
    ret = pd_recv_done(acc_sid, DATA_LEN);
    check(ret == 0, "recv_done");
    pd_close(acc_sid);
    pd_close(sid);
}

static void client(struct sockaddr_in serv_addr) {
    int sid, ret;
    char *send_buf;

    sid = pd_socket(AF_INET, SOCK_STREAM, PROTOCOL);
    check(sid >= 0, "socket");
    ret = pd_connect(sid, &serv_addr, sizeof(serv_addr));
    check(ret == 0, "connect");
    send_buf = pd_malloc(DATA_LEN);
    check(send_buf != NULL, "malloc");
    void *ptrs[] = {send_buf};
    ret = pd_buf_refresh(sid, ptrs, 1);
    check(ret == 1, "buf_refresh");
    strcpy(send_buf, "PipeDevice");
    ret = pd_send(sid, send_buf, DATA_LEN);
    check(ret == DATA_LEN, "send");

    pd_free(send_buf);
    pd_close(sid);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s server|client ADDRESS PORT\n", argv[0]);
        return 2;
    }
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
    check(inet_pton(AF_INET, argv[2], &addr.sin_addr) == 1, "address");
    if (strcmp(argv[1], "server") == 0)
        server(addr);
    else
        client(addr);
    return 0;
}
