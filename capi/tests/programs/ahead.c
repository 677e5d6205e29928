/* Tasks that are submitted before their inputs are written. usage: ahead SCHEDULER (a backend serves the emulated model "m") */
#include "expect.h"

#define LONG (UINT64_C(60) * 1000 * 1000 * 1000)

/* The answer of an emulated model depends on every byte of its input. */
static void answer_of(baton_ticket ticket, unsigned char answer[8]) {
    baton_outcome outcome = {.struct_size = sizeof outcome};
    EXPECT(baton_ticket_wait(ticket, BATON_FOREVER, &outcome) == BATON_OK);
    EXPECT(outcome.kind == BATON_COMPLETED);
    const void *data;
    size_t bytes;
    EXPECT(baton_reply_data(outcome.reply, &data, &bytes) == BATON_OK && bytes == 8);
    memcpy(answer, data, 8);
    EXPECT(baton_reply_free(outcome.reply) == BATON_OK);
}

static void *data_of(baton_input input) {
    void *data;
    EXPECT(baton_input_data(input, &data, NULL) == BATON_OK);
    return data;
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    const baton_client client = connected(arguments[1]);
    const baton_model model = the_model(client);
    baton_input input;
    baton_ticket ticket;
    unsigned char before[8], ahead[8];
    EXPECT(baton_model_input(model, 0, &input) == BATON_OK);
    memset(data_of(input), 7, 4096);
    REFUSED(baton_input_finish(input), BATON_E_ARGUMENT, "not submitted yet");
    EXPECT(baton_input_submit(input, LONG, &ticket) == BATON_OK);
    answer_of(ticket, before);

    EXPECT(baton_model_input(model, 0, &input) == BATON_OK);
    memset(data_of(input), 9, 4096);
    REFUSED(baton_input_submit_ahead(input, LONG, NULL), BATON_E_ARGUMENT, "ticket is NULL");
    REFUSED(baton_input_submit_ahead(input, 0, &ticket), BATON_E_DEADLINE_PASSED, "positive duration");
    EXPECT(baton_input_submit_ahead(input, LONG, &ticket) == BATON_OK);
    baton_outcome outcome = {.struct_size = sizeof outcome};
    EXPECT(baton_ticket_wait(ticket, UINT64_C(50) * 1000 * 1000, &outcome) == BATON_PENDING);
    baton_ticket other;
    REFUSED(baton_input_submit(input, LONG, &other), BATON_E_BUSY, "submitted already");
    REFUSED(baton_input_truncate(input, 8), BATON_E_BUSY, "submitted already");
    REFUSED(baton_input_cost(input, 8), BATON_E_BUSY, "submitted already");
    memset(data_of(input), 7, 4096);
    EXPECT(baton_input_finish(input) == BATON_OK);
    REFUSED(baton_input_finish(input), BATON_E_HANDLE, "used up");
    answer_of(ticket, ahead);
    EXPECT(memcmp(before, ahead, 8) == 0);

    EXPECT(baton_model_input(model, 0, &input) == BATON_OK);
    EXPECT(baton_input_submit_ahead(input, LONG, &ticket) == BATON_OK);
    EXPECT(baton_input_free(input) == BATON_OK);
    EXPECT(baton_ticket_wait(ticket, BATON_FOREVER, &outcome) == BATON_OK);
    EXPECT(outcome.kind == BATON_DROPPED && outcome.reason == BATON_DROPPED_CANCELLED);

    EXPECT(baton_model_input(model, 0, &input) == BATON_OK);
    EXPECT(baton_input_submit_ahead(input, UINT64_C(300) * 1000 * 1000, &ticket) == BATON_OK);
    EXPECT(baton_ticket_wait(ticket, BATON_FOREVER, &outcome) == BATON_OK);
    EXPECT(outcome.kind == BATON_DROPPED);
    EXPECT(baton_input_finish(input) == BATON_OK);
    EXPECT(baton_model_free(model) == BATON_OK);
    EXPECT(baton_client_leave(client) == BATON_OK);
    puts("written later");
    return 0;
}
