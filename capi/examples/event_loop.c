/* Many tasks outstanding, in an event loop: poll() watches the descriptor of a completion queue, as it would watch sockets.
 *
 *     cc event_loop.c $(pkg-config --cflags --libs baton) -o event_loop
 *     ./event_loop 127.0.0.1:7700 MODEL TASKS
 */
#include <baton.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUTSTANDING 32

struct loop {
    baton_model model;
    baton_queue queue;
    unsigned long submitted, completed, late, dropped, failed;
};

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, baton_error());
    exit(EXIT_FAILURE);
}

/* One more task; its number is its tag. */
static void submit(struct loop *loop) {
    baton_input input;
    baton_ticket ticket;
    void *data;
    size_t bytes;
    if (baton_model_input(loop->model, 0, &input) != BATON_OK) die("input");
    if (baton_input_data(input, &data, &bytes) != BATON_OK) die("data");
    memset(data, (int)(loop->submitted & 0xff), bytes);
    if (baton_input_submit(input, BATON_SLO, &ticket) != BATON_OK) die("submit");
    if (baton_queue_add(loop->queue, ticket, loop->submitted, NULL) != BATON_OK) die("add");
    loop->submitted += 1;
}

static void count(struct loop *loop, const baton_outcome *outcome) {
    switch (outcome->kind) {
        case BATON_COMPLETED:
            loop->completed += 1;
            loop->late += outcome->is_late;
            baton_reply_free(outcome->reply);
            break;
        case BATON_DROPPED: loop->dropped += 1; break;
        default: loop->failed += 1;
    }
}

static void run(struct loop *loop, unsigned long tasks) {
    struct pollfd watched = {.fd = -1, .events = POLLIN, .revents = 0};
    baton_outcome outcome = {.struct_size = sizeof outcome};
    unsigned long ended = 0;
    if (baton_queue_fd(loop->queue, &watched.fd) != BATON_OK) die("fd");
    while (ended < tasks) {
        while (loop->submitted < tasks && loop->submitted - ended < OUTSTANDING) submit(loop);
        if (poll(&watched, 1, 60 * 1000) != 1) {
            fprintf(stderr, "no outcome within a minute\n");
            exit(EXIT_FAILURE);
        }
        while (baton_queue_next(loop->queue, 0, NULL, &outcome) == BATON_OK) {
            count(loop, &outcome);
            ended += 1;
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: event_loop SCHEDULER MODEL TASKS\n");
        return EXIT_FAILURE;
    }
    baton_config config = {.struct_size = sizeof config, .scheduler = argv[1]};
    baton_client client;
    struct loop loop;
    memset(&loop, 0, sizeof loop);
    if (baton_client_connect(&config, &client) != BATON_OK) die("connect");
    if (baton_client_model(client, argv[2], &loop.model) != BATON_OK) die("model");
    if (baton_queue_new(OUTSTANDING, &loop.queue) != BATON_OK) die("queue");
    run(&loop, strtoul(argv[3], NULL, 10));
    printf("%lu completed (%lu late), %lu dropped, %lu failed\n", loop.completed, loop.late, loop.dropped, loop.failed);
    baton_queue_free(loop.queue);
    baton_model_free(loop.model);
    if (baton_client_leave(client) != BATON_OK) die("leave");
    return EXIT_SUCCESS;
}
