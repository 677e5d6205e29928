/* Every way to hold the library wrong has a status and words. usage: misuse SCHEDULER (no backend serves the model "m") */
#include "expect.h"

#define LONG (UINT64_C(60) * 1000 * 1000 * 1000)

static void connecting(const char *scheduler) {
    baton_client client;
    baton_config config;
    memset(&config, 0, sizeof config);
    REFUSED(baton_client_connect(&config, &client), BATON_E_ARGUMENT, "struct_size");
    REFUSED(baton_client_connect(NULL, &client), BATON_E_ARGUMENT, "baton_config is NULL");
    config.struct_size = sizeof config;
    REFUSED(baton_client_connect(&config, &client), BATON_E_ARGUMENT, "config.scheduler");
    config.scheduler = "nowhere";
    REFUSED(baton_client_connect(&config, &client), BATON_E_ARGUMENT, "IP:PORT");
    config.scheduler = "127.0.0.1:1";
    config.connect_timeout_ns = 1000 * 1000;
    REFUSED(baton_client_connect(&config, &client), BATON_E_CONNECT, "127.0.0.1:1");
    config.scheduler = scheduler;
    REFUSED(baton_client_connect(&config, NULL), BATON_E_ARGUMENT, "client is NULL");
    config.connect_timeout_ns = 0;
    config.tls_ca = "ca.pem";
    REFUSED(baton_client_connect(&config, &client), BATON_E_ARGUMENT, "tls_cert");
    config.tls_ca = NULL;
    const char *const models[] = {"m", "absent"};
    config.models = models;
    config.model_count = 2;
    REFUSED(baton_client_connect(&config, &client), BATON_E_CONNECT, "absent");
    config.models = NULL;
    REFUSED(baton_client_connect(&config, &client), BATON_E_ARGUMENT, "config.models");
}

static void models(baton_client client) {
    const baton_model none = {0};
    baton_model model = none;
    REFUSED(baton_client_model(client, "absent", &model), BATON_E_UNKNOWN_MODEL, "this client has: m");
    REFUSED(baton_client_model_at(client, 1, &model), BATON_E_ARGUMENT, "has 1 models");
    model = the_model(client);
    baton_model_info info = {.struct_size = sizeof info};
    EXPECT(baton_model_describe(model, &info) == BATON_OK);
    EXPECT(strcmp(info.name, "m") == 0 && info.input_bytes == 4096 && info.input_count == 1);
    info.struct_size = 4;
    REFUSED(baton_model_describe(model, &info), BATON_E_ARGUMENT, "sizeof(baton_model_info)");
    info.struct_size = sizeof info;
    REFUSED(baton_model_describe(none, &info), BATON_E_HANDLE, "zero");
    const baton_model other_kind = {client.id};
    REFUSED(baton_model_describe(other_kind, &info), BATON_E_HANDLE, "another kind");
    baton_tensor tensor = {.struct_size = sizeof tensor};
    EXPECT(baton_model_tensor(model, BATON_INPUTS, 0, &tensor) == BATON_OK);
    EXPECT(tensor.element == BATON_U8 && tensor.rank == 1 && tensor.shape[0] == 4096 && tensor.varies == 0);
    EXPECT(tensor.data == NULL && tensor.bytes == 4096);
    REFUSED(baton_model_tensor(model, 2, 0, &tensor), BATON_E_ARGUMENT, "BATON_OUTPUTS");
    REFUSED(baton_model_tensor(model, BATON_OUTPUTS, 1, &tensor), BATON_E_ARGUMENT, "there are 1 tensors");
    EXPECT(baton_model_free(model) == BATON_OK);
    REFUSED(baton_model_free(model), BATON_E_HANDLE, "freed");
}

static void inputs(baton_client client) {
    const baton_model model = the_model(client);
    baton_input all[4], more;
    for (int at = 0; at < 4; ++at) EXPECT(baton_model_input(model, 0, &all[at]) == BATON_OK);
    REFUSED(baton_model_input(model, 0, &more), BATON_E_NO_SLOT, "all 4 slots of m are in use");
    EXPECT(baton_model_input(model, 1000 * 1000, &more) == BATON_PENDING);
    void *data;
    size_t bytes;
    EXPECT(baton_input_data(all[0], &data, &bytes) == BATON_OK && bytes == 4096);
    EXPECT(baton_input_truncate(all[0], 16) == BATON_OK && baton_input_cost(all[0], 7) == BATON_OK);
    EXPECT(baton_input_data(all[0], &data, &bytes) == BATON_OK && bytes == 16);
    EXPECT(baton_input_data(all[0], &data, NULL) == BATON_OK);
    baton_ticket ticket;
    REFUSED(baton_input_submit(all[1], 0, &ticket), BATON_E_DEADLINE_PASSED, "positive duration");
    REFUSED(baton_input_submit(all[1], BATON_SLO, NULL), BATON_E_ARGUMENT, "ticket is NULL");
    EXPECT(baton_input_submit(all[1], LONG, &ticket) == BATON_OK);
    REFUSED(baton_input_data(all[1], &data, &bytes), BATON_E_HANDLE, "used up");
    EXPECT(baton_ticket_free(ticket) == BATON_OK);
    EXPECT(baton_input_free(all[0]) == BATON_OK && baton_input_free(all[2]) == BATON_OK);
    EXPECT(baton_input_free(all[3]) == BATON_OK);
    REFUSED(baton_input_free(all[3]), BATON_E_HANDLE, "freed");
    const uint32_t shape[BATON_RANK_MAX] = {3};
    baton_tensor tensor = {.struct_size = sizeof tensor, .rank = 1, .name = "input", .data = shape, .bytes = 3};
    memcpy(tensor.shape, shape, sizeof shape);
    REFUSED(baton_model_input_of(model, &tensor, 1, &more), BATON_E_TENSORS, "no input of m");
    tensor.rank = 9;
    REFUSED(baton_model_input_of(model, &tensor, 1, &more), BATON_E_ARGUMENT, "rank");
    REFUSED(baton_model_input_of(model, NULL, 1, &more), BATON_E_ARGUMENT, "baton_tensor is NULL");
    REFUSED(baton_model_input_of(model, NULL, 32, &more), BATON_E_ARGUMENT, "baton_tensor is NULL");
    REFUSED(baton_model_input_of(model, NULL, 33, &more), BATON_E_ARGUMENT, "has 32 tensors at most");
    EXPECT(baton_model_free(model) == BATON_OK);
}

/* Nothing serves the model: its tasks are dropped at once. */
static void outcomes(baton_client client) {
    const baton_model model = the_model(client);
    const baton_ticket ticket = submitted(model, LONG);
    baton_outcome outcome = {.struct_size = sizeof outcome};
    REFUSED(baton_ticket_wait(ticket, LONG, NULL), BATON_E_ARGUMENT, "baton_outcome is NULL");
    EXPECT(baton_ticket_wait(ticket, LONG, &outcome) == BATON_OK);
    EXPECT(outcome.kind == BATON_DROPPED && outcome.reason == BATON_DROPPED_NO_BACKEND);
    EXPECT(outcome.ended_by == BATON_BY_SCHEDULER && outcome.reply.id == 0);
    EXPECT(outcome.ended_ns >= outcome.submitted_ns && outcome.deadline_ns == outcome.submitted_ns + LONG);
    EXPECT(strcmp(baton_reason_name(outcome.kind, outcome.reason), "no_backend") == 0);
    char text[16];
    size_t needed = 0;
    EXPECT(baton_outcome_explain(&outcome, text, sizeof text, &needed) == BATON_OK);
    EXPECT(strcmp(text, "dropped (no_bac") == 0 && needed > sizeof text);
    REFUSED(baton_ticket_wait(ticket, 0, &outcome), BATON_E_HANDLE, "used up");
    REFUSED(baton_ticket_cancel(ticket), BATON_E_HANDLE, "used up");
    const void *data;
    REFUSED(baton_reply_data(outcome.reply, &data, NULL), BATON_E_HANDLE, "zero");
    outcome.kind = 9;
    REFUSED(baton_outcome_explain(&outcome, text, sizeof text, NULL), BATON_E_ARGUMENT, "no outcome");
    EXPECT(baton_model_free(model) == BATON_OK);
}

/* A program that was compiled before baton_outcome had is_cold: nothing is written behind what it knows. */
static void of_an_older_header(baton_client client) {
    const baton_model model = the_model(client);
    baton_outcome outcome;
    memset(&outcome, 0xff, sizeof outcome);
    outcome.struct_size = offsetof(baton_outcome, is_cold);
    EXPECT(baton_ticket_wait(submitted(model, LONG), LONG, &outcome) == BATON_OK);
    EXPECT(outcome.kind == BATON_DROPPED && outcome.struct_size == offsetof(baton_outcome, is_cold));
    EXPECT(outcome.is_cold == UINT32_MAX && outcome.reserved == UINT32_MAX);
    char text[16];
    EXPECT(baton_outcome_explain(&outcome, text, sizeof text, NULL) == BATON_OK);
    outcome.struct_size = offsetof(baton_outcome, is_cold) - 1;
    REFUSED(baton_outcome_explain(&outcome, text, sizeof text, NULL), BATON_E_ARGUMENT, "sizeof(baton_outcome)");
    EXPECT(baton_model_free(model) == BATON_OK);
}

static void queues(baton_client client) {
    const baton_model model = the_model(client);
    baton_queue queue;
    baton_key key = {0};
    baton_outcome outcome = {.struct_size = sizeof outcome};
    uint64_t tag = 0;
    EXPECT(baton_queue_new(1, &queue) == BATON_OK);
    EXPECT(baton_queue_next(queue, LONG, NULL, &outcome) == BATON_EMPTY);
    EXPECT(baton_queue_add(queue, submitted(model, LONG), 7, &key) == BATON_OK);
    const baton_ticket second = submitted(model, LONG);
    REFUSED(baton_queue_add(queue, second, 8, NULL), BATON_E_QUEUE_FULL, "all 1 places");
    EXPECT(baton_queue_next(queue, LONG, &tag, &outcome) == BATON_OK && tag == 7);
    REFUSED(baton_queue_cancel(queue, key), BATON_E_HANDLE, "taken already");
    EXPECT(baton_queue_add(queue, second, 8, NULL) == BATON_OK);
    REFUSED(baton_queue_add(queue, second, 8, NULL), BATON_E_HANDLE, "used up");
    EXPECT(baton_queue_free(queue) == BATON_OK);
    REFUSED(baton_queue_next(queue, 0, NULL, &outcome), BATON_E_HANDLE, "freed");
    EXPECT(baton_model_free(model) == BATON_OK);
}

int main(int argc, char **argv) {
    EXPECT(argc == 2 && baton_abi_version() == BATON_ABI_VERSION);
    EXPECT(strcmp(baton_status_name(BATON_E_NO_SLOT), "no_slot") == 0);
    connecting(argv[1]);
    const baton_client client = connected(argv[1]);
    models(client);
    inputs(client);
    outcomes(client);
    of_an_older_header(client);
    queues(client);
    uint64_t value;
    REFUSED(baton_client_counter(client, "absent", &value), BATON_E_ARGUMENT, "submitted");
    EXPECT(baton_client_counter(client, "submitted", &value) == BATON_OK && value >= 3);
    const baton_model model = the_model(client);
    EXPECT(baton_client_leave(client) == BATON_OK);
    REFUSED(baton_client_leave(client), BATON_E_HANDLE, "freed");
    baton_input input;
    REFUSED(baton_model_input(model, 1, &input), BATON_E_CLIENT_CLOSED, "connect a new one");
    EXPECT(baton_model_free(model) == BATON_OK);
    puts("refused as it should be");
    return EXIT_SUCCESS;
}
