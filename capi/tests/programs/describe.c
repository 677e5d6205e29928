/* Says what the models of a scheduler are. usage: describe SCHEDULER */
#include "expect.h"

static void describe(baton_model model, int32_t side, const char *name, uint32_t count) {
    baton_tensor tensor = {.struct_size = sizeof tensor};
    for (uint32_t index = 0; index < count; index++) {
        EXPECT(baton_model_tensor(model, side, index, &tensor) == BATON_OK);
        printf(" %s %s:%d", name, tensor.name, (int)tensor.element);
        for (uint32_t dimension = 0; dimension < tensor.rank; dimension++) {
            const int varies = tensor.varies >> dimension & 1;
            printf("%s%u", varies ? " up to " : " ", (unsigned)tensor.shape[dimension]);
        }
        printf(" in %zu bytes;", tensor.bytes);
    }
    EXPECT(baton_model_tensor(model, side, count, &tensor) == BATON_E_ARGUMENT);
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    const baton_client client = connected(arguments[1]);
    size_t models;
    EXPECT(baton_client_model_count(client, &models) == BATON_OK);
    for (size_t index = 0; index < models; index++) {
        baton_model model;
        baton_model_info info = {.struct_size = sizeof info};
        EXPECT(baton_client_model_at(client, index, &model) == BATON_OK);
        EXPECT(baton_model_describe(model, &info) == BATON_OK);
        EXPECT(info.is_removed == 0 && info.retry_after_ns == 0);
        printf("%s, %zu to %zu bytes in %u ms:", info.name, info.input_bytes, info.output_bytes,
               (unsigned)(info.slo_ns / 1000000));
        describe(model, BATON_INPUTS, "input", info.input_count);
        describe(model, BATON_OUTPUTS, "output", info.output_count);
        printf("\n");
        EXPECT(baton_model_free(model) == BATON_OK);
    }
    EXPECT(baton_client_leave(client) == BATON_OK);
    return EXIT_SUCCESS;
}
