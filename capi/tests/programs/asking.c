/* What a program may ask of clients, tickets, queues and replies. usage: asking SCHEDULER (a backend serves the emulated model "m") */
#include "expect.h"

#include <poll.h>

#define LONG (UINT64_C(60) * 1000 * 1000 * 1000)

static uint64_t now_of(baton_client client) {
    uint64_t now_ns;
    EXPECT(baton_client_now(client, &now_ns) == BATON_OK);
    return now_ns;
}

static uint32_t slots_of(baton_client client) {
    uint32_t slots;
    EXPECT(baton_client_slots_in_use(client, &slots) == BATON_OK);
    return slots;
}

static size_t length_of(baton_queue queue) {
    size_t length;
    EXPECT(baton_queue_len(queue, &length) == BATON_OK);
    return length;
}

/* The answer to an input of 4096 such bytes, given as a tensor. */
static baton_ticket sent(baton_model model, const unsigned char *bytes) {
    baton_input input;
    baton_ticket ticket;
    baton_tensor tensor = {.struct_size = sizeof tensor, .element = BATON_U8, .rank = 1, .name = "input"};
    tensor.shape[0] = 4096;
    tensor.data = bytes;
    tensor.bytes = 4096;
    EXPECT(baton_model_input_of(model, &tensor, 1, &input) == BATON_OK);
    void *written;
    EXPECT(baton_input_data(input, &written, NULL) == BATON_OK && memcmp(written, bytes, 4096) == 0);
    EXPECT(baton_input_submit(input, LONG, &ticket) == BATON_OK);
    return ticket;
}

/* An answer as bytes and as a tensor is the same memory. */
static void answers(baton_model model, baton_reply reply) {
    const void *data;
    size_t bytes;
    baton_tensor tensor = {.struct_size = sizeof tensor};
    EXPECT(baton_reply_data(reply, &data, &bytes) == BATON_OK && bytes == 8);
    EXPECT(baton_reply_tensor(reply, model, 0, &tensor) == BATON_OK);
    EXPECT(strcmp(tensor.name, "output") == 0 && tensor.element == BATON_U8 && tensor.varies == 0);
    EXPECT(tensor.rank == 1 && tensor.shape[0] == 8 && tensor.shape[1] == 0);
    EXPECT(tensor.data == data && tensor.bytes == bytes);
    REFUSED(baton_reply_tensor(reply, model, 1, &tensor), BATON_E_ARGUMENT, "there are 1 tensors");
    EXPECT(baton_reply_free(reply) == BATON_OK);
    REFUSED(baton_reply_data(reply, &data, &bytes), BATON_E_HANDLE, "freed");
}

static void tasks(baton_client client, baton_model model) {
    const unsigned char inputs[2][4096] = {{1}, {2}};
    const uint64_t began_ns = now_of(client);
    EXPECT(began_ns > 0 && slots_of(client) == 0);
    baton_ticket tickets[2];
    uint64_t ids[2];
    baton_outcome outcomes[2] = {{.struct_size = sizeof outcomes[0]}, {.struct_size = sizeof outcomes[1]}};
    for (int at = 0; at < 2; ++at) {
        tickets[at] = sent(model, inputs[at]);
        EXPECT(baton_ticket_task(tickets[at], &ids[at]) == BATON_OK);
    }
    EXPECT(ids[0] != ids[1] && slots_of(client) == 2);
    for (int at = 0; at < 2; ++at) {
        EXPECT(baton_ticket_wait(tickets[at], BATON_FOREVER, &outcomes[at]) == BATON_OK);
        EXPECT(outcomes[at].kind == BATON_COMPLETED);
        EXPECT(outcomes[at].submitted_ns >= began_ns && outcomes[at].ended_ns <= now_of(client));
        REFUSED(baton_ticket_task(tickets[at], &ids[at]), BATON_E_HANDLE, "used up");
    }
    char all[1024], some[16];
    size_t needed;
    EXPECT(baton_outcome_explain(&outcomes[0], all, sizeof all, &needed) == BATON_OK);
    EXPECT(strncmp(all, "completed", 9) == 0 && needed == strlen(all) + 1);
    EXPECT(baton_outcome_explain(&outcomes[0], some, sizeof some, NULL) == BATON_OK);
    EXPECT(strlen(some) == 15 && strncmp(some, all, 15) == 0);
    EXPECT(slots_of(client) == 2);
    for (int at = 0; at < 2; ++at) answers(model, outcomes[at].reply);
    EXPECT(slots_of(client) == 0);
}

/* Ends when the program says so: its input is never finished. */
static baton_ticket waiting(baton_model model, baton_input *input) {
    baton_ticket ticket;
    EXPECT(baton_model_input(model, LONG, input) == BATON_OK);
    EXPECT(baton_input_submit_ahead(*input, LONG, &ticket) == BATON_OK);
    return ticket;
}

static void queues(baton_model model) {
    baton_queue queue;
    baton_key keys[2];
    baton_input inputs[2];
    struct pollfd watched = {.fd = -1, .events = POLLIN, .revents = 0};
    baton_outcome outcome = {.struct_size = sizeof outcome};
    uint64_t tag;
    EXPECT(baton_queue_new(2, &queue) == BATON_OK && length_of(queue) == 0);
    EXPECT(baton_queue_fd(queue, &watched.fd) == BATON_OK);
    for (size_t at = 0; at < 2; ++at) {
        EXPECT(baton_queue_add(queue, waiting(model, &inputs[at]), 7 + at, &keys[at]) == BATON_OK);
        EXPECT(length_of(queue) == at + 1);
    }
    EXPECT(baton_queue_next(queue, 0, &tag, &outcome) == BATON_PENDING);
    EXPECT(baton_queue_cancel(queue, keys[1]) == BATON_OK);
    EXPECT(poll(&watched, 1, 60 * 1000) == 1);
    EXPECT(baton_queue_next(queue, LONG, &tag, &outcome) == BATON_OK && tag == 8);
    EXPECT(outcome.kind == BATON_DROPPED && outcome.reason == BATON_DROPPED_CANCELLED);
    EXPECT(length_of(queue) == 1);
    EXPECT(baton_queue_free(queue) == BATON_OK);
    for (int at = 0; at < 2; ++at) EXPECT(baton_input_free(inputs[at]) == BATON_OK);
}

static void cancelled(baton_model model) {
    baton_input input;
    const baton_ticket ticket = waiting(model, &input);
    baton_outcome outcome = {.struct_size = sizeof outcome};
    EXPECT(baton_ticket_wait(ticket, 0, &outcome) == BATON_PENDING);
    EXPECT(baton_ticket_cancel(ticket) == BATON_OK);
    EXPECT(baton_ticket_wait(ticket, BATON_FOREVER, &outcome) == BATON_OK);
    EXPECT(outcome.kind == BATON_DROPPED && outcome.reason == BATON_DROPPED_CANCELLED);
    EXPECT(baton_input_free(input) == BATON_OK);
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    const baton_client client = connected(arguments[1]);
    const baton_model model = the_model(client);
    tasks(client, model);
    queues(model);
    cancelled(model);
    /* What came from a client outlives its handle. */
    EXPECT(baton_client_free(client) == BATON_OK);
    REFUSED(baton_client_free(client), BATON_E_HANDLE, "freed");
    baton_outcome outcome = {.struct_size = sizeof outcome};
    EXPECT(baton_ticket_wait(submitted(model, LONG), BATON_FOREVER, &outcome) == BATON_OK);
    EXPECT(outcome.kind == BATON_COMPLETED && baton_reply_free(outcome.reply) == BATON_OK);
    EXPECT(baton_model_free(model) == BATON_OK);
    printf("answered by %s\n", baton_version());
    return EXIT_SUCCESS;
}
