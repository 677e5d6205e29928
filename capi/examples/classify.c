/* One request in C: connect, write an input in place, submit it with a deadline, read the answer.
 *
 *     cc classify.c $(pkg-config --cflags --libs baton) -o classify
 *     ./classify 127.0.0.1:7700 [model]
 */
#include <baton.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, baton_error());
    return EXIT_FAILURE;
}

static void print_answer(baton_model model, const baton_outcome *outcome) {
    baton_tensor tensor = {.struct_size = sizeof tensor};
    if (baton_reply_tensor(outcome->reply, model, 0, &tensor) != BATON_OK) {
        failed("answer");
        return;
    }
    printf("%s:", tensor.name);
    if (tensor.element == BATON_F32) {
        const float *scores = tensor.data;
        for (size_t at = 0; at < tensor.bytes / sizeof *scores; ++at) printf(" %.3f", scores[at]);
    } else {
        const unsigned char *bytes = tensor.data;
        for (size_t at = 0; at < tensor.bytes && at < 16; ++at) printf(" %02x", bytes[at]);
    }
    printf("\n%.3f ms, batch of %u%s\n", (double)(outcome->ended_ns - outcome->submitted_ns) / 1e6, outcome->batch_size,
           outcome->is_late ? ", late" : "");
}

static int infer(baton_client client, const char *name) {
    baton_model model;
    const int32_t found = name ? baton_client_model(client, name, &model) : baton_client_model_at(client, 0, &model);
    if (found != BATON_OK) return failed("model");

    baton_input input;
    void *data;
    size_t bytes;
    if (baton_model_input(model, 0, &input) != BATON_OK || baton_input_data(input, &data, &bytes) != BATON_OK)
        return failed("input");
    memset(data, 0, bytes);

    baton_ticket ticket;
    if (baton_input_submit(input, BATON_SLO, &ticket) != BATON_OK) return failed("submit");

    baton_outcome outcome = {.struct_size = sizeof outcome};
    if (baton_ticket_wait(ticket, BATON_FOREVER, &outcome) != BATON_OK) return failed("wait");

    if (outcome.kind == BATON_COMPLETED) {
        print_answer(model, &outcome);
        baton_reply_free(outcome.reply);
    } else {
        char text[512];
        baton_outcome_explain(&outcome, text, sizeof text, NULL);
        printf("%s\n", text);
    }
    baton_model_free(model);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    baton_config config = {.struct_size = sizeof config};
    config.scheduler = argc > 1 ? argv[1] : "127.0.0.1:7700";
    baton_client client;
    if (baton_client_connect(&config, &client) != BATON_OK) return failed("connect");
    const int status = infer(client, argc > 2 ? argv[2] : NULL);
    if (baton_client_leave(client) != BATON_OK) return failed("leave");
    return status;
}
