/* Ends in the middle of everything: with tasks outstanding, an input half written, a client that was not left. A child that
 * is forked off meanwhile is refused. usage: outstanding SCHEDULER return|exit|fork (a backend serves the model "m") */
#define _POSIX_C_SOURCE 200809L
#include "expect.h"

#include <sys/wait.h>
#include <unistd.h>

/* The child ends by exit(), so that whatever the library does then is done there, too. */
static void in_a_child(baton_client client, baton_model model, baton_ticket ticket) {
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        alarm(60);
        baton_outcome outcome = {.struct_size = sizeof outcome};
        baton_input input;
        REFUSED(baton_ticket_wait(ticket, BATON_FOREVER, &outcome), BATON_E_FORKED, "connect");
        REFUSED(baton_ticket_free(ticket), BATON_E_FORKED, "connect");
        REFUSED(baton_model_input(model, 0, &input), BATON_E_FORKED, "connect");
        REFUSED(baton_client_leave(client), BATON_E_FORKED, "connect");
        exit(EXIT_SUCCESS);
    }
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
}

int main(int argc, char **argv) {
    EXPECT(argc == 3);
    const baton_client client = connected(argv[1]);
    const baton_model model = the_model(client);
    const baton_ticket ticket = submitted(model, BATON_SLO);
    baton_input input;
    EXPECT(baton_model_input(model, 0, &input) == BATON_OK);
    if (strcmp(argv[2], "exit") == 0) exit(EXIT_SUCCESS);
    if (strcmp(argv[2], "return") == 0) return EXIT_SUCCESS;
    in_a_child(client, model, ticket);
    /* The parent's client works as before. */
    baton_outcome outcome = {.struct_size = sizeof outcome};
    EXPECT(baton_ticket_wait(ticket, BATON_FOREVER, &outcome) == BATON_OK);
    EXPECT(baton_input_free(input) == BATON_OK && baton_model_free(model) == BATON_OK);
    if (outcome.kind == BATON_COMPLETED) {
        EXPECT(outcome.submitted_ns < outcome.started_ns + outcome.clock_error_ns);
        EXPECT(outcome.started_ns < outcome.finished_ns);
        EXPECT(outcome.finished_ns < outcome.ended_ns + outcome.clock_error_ns);
        EXPECT(outcome.is_late == (outcome.ended_ns > outcome.deadline_ns) && outcome.batch_size == 1);
        EXPECT(baton_reply_free(outcome.reply) == BATON_OK);
    }
    EXPECT(baton_client_leave(client) == BATON_OK);
    return EXIT_SUCCESS;
}
