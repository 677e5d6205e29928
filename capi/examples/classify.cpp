// One request, then many at once, in C++17.
//
//     c++ -std=c++17 classify.cpp $(pkg-config --cflags --libs baton) -o classify
//     ./classify 127.0.0.1:7700 [model]
#include <baton.hpp>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <vector>

using namespace std::chrono_literals;

namespace {

constexpr std::size_t many = 16;

void print(const baton::outcome& outcome) {
    if (outcome.completed()) {
        std::cout << outcome.answer.size() << " bytes in " << outcome.latency().count() / 1000 << " us, batch of "
                  << outcome.fields.batch_size << (outcome.late() ? ", late" : "") << '\n';
    } else {
        std::cout << outcome.explain() << '\n';
    }
}

baton::ticket submit(const baton::model& model) {
    auto input = model.input(1s);
    if (!input) throw std::runtime_error("no slot was free within a second");
    std::memset(input->data(), 0, input->size());
    return input->submit();
}

baton::model choose(const baton::client& client, const char* name) {
    if (name) return client.model(name);
    auto models = client.models();
    if (models.empty()) throw std::runtime_error("the scheduler serves no model");
    return std::move(models.front());
}

void run(const baton::client& client, const char* name) {
    const auto model = choose(client, name);
    print(submit(model).wait());

    std::vector<baton::ticket> tickets;
    while (tickets.size() < many) tickets.push_back(submit(model));
    tickets.front().cancel();
    std::size_t completed = 0;
    for (auto& ticket : tickets) completed += ticket.wait().completed() ? 1 : 0;
    std::cout << completed << " of " << many << " completed; one was cancelled\n";
}

}  // namespace

int main(int argc, char** argv) try {
    baton::client client(argc > 1 ? argv[1] : "127.0.0.1:7700");
    run(client, argc > 2 ? argv[2] : nullptr);
    client.leave();
    return EXIT_SUCCESS;
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return EXIT_FAILURE;
}
