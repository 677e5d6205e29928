/* What the test programs share: a check that names the line, and a connection. */
#ifndef EXPECT_H
#define EXPECT_H

#include <baton.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPECT(condition)                                                                                     \
    do {                                                                                                      \
        if (!(condition)) {                                                                                   \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, baton_error());       \
            exit(EXIT_FAILURE);                                                                               \
        }                                                                                                     \
    } while (0)

/* The call ends with this status, and its words have this part. */
#define REFUSED(call, status, words)                                                                          \
    do {                                                                                                      \
        EXPECT((call) == (status));                                                                           \
        EXPECT(strstr(baton_error(), words) != NULL);                                                         \
    } while (0)

static inline baton_client connected(const char *scheduler) {
    alarm(300); /* whatever hangs ends */
    baton_config config = {.struct_size = sizeof config, .scheduler = scheduler, .slots_per_model = 4};
    baton_client client;
    EXPECT(baton_client_connect(&config, &client) == BATON_OK);
    return client;
}

static inline baton_model the_model(baton_client client) {
    baton_model model;
    EXPECT(baton_client_model(client, "m", &model) == BATON_OK);
    return model;
}

/* A task with a deadline far away, or BATON_SLO. */
static inline baton_ticket submitted(baton_model model, uint64_t within_ns) {
    baton_input input;
    baton_ticket ticket;
    EXPECT(baton_model_input(model, 0, &input) == BATON_OK);
    EXPECT(baton_input_submit(input, within_ns, &ticket) == BATON_OK);
    return ticket;
}

#endif
