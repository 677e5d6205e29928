// Baton's client library for C++17: baton.h with owners. Guide: docs/c.md.
//
// Every class but `outcome` owns one handle, may be moved and not copied, and frees it at its end. A call that fails
// throws baton::error, whose what() says what is wrong and what to do. Dropping a ticket cancels its task.
#ifndef BATON_HPP
#define BATON_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton.h"

namespace baton {

class error : public std::runtime_error {
public:
    explicit error(std::int32_t status) : std::runtime_error(baton_error()), status_(status) {}

    // BATON_E_...
    std::int32_t status() const noexcept { return status_; }

private:
    std::int32_t status_;
};

// Throws if a call failed; returns its status otherwise.
inline std::int32_t check(std::int32_t status) {
    if (status < 0) throw error(status);
    return status;
}

// A deadline or a timeout from now. Longer than 500 years is BATON_FOREVER.
using span = std::chrono::nanoseconds;
inline constexpr span forever = span::max();

namespace detail {

inline std::uint64_t count(span time) noexcept {
    if (time == forever) return BATON_FOREVER;
    return time.count() > 0 ? static_cast<std::uint64_t>(time.count()) : 0;
}

// Owns a handle.
template <class Handle, std::int32_t (*Free)(Handle)>
class owner {
public:
    owner() noexcept : handle_{0} {}
    explicit owner(Handle handle) noexcept : handle_(handle) {}
    owner(owner&& other) noexcept : handle_(other.release()) {}
    owner& operator=(owner&& other) noexcept {
        if (this != &other) {
            reset();
            handle_ = other.release();
        }
        return *this;
    }
    owner(const owner&) = delete;
    owner& operator=(const owner&) = delete;
    ~owner() { reset(); }

    Handle get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_.id != 0; }

    // The handle, which the caller owns from now on.
    Handle release() noexcept { return std::exchange(handle_, Handle{0}); }

private:
    void reset() noexcept {
        if (handle_.id != 0) Free(release());
    }

    Handle handle_;
};

template <class Struct>
Struct sized() noexcept {
    Struct value{};
    value.struct_size = static_cast<std::uint32_t>(sizeof value);
    return value;
}

}  // namespace detail

// An answer. It holds its slot: let it go as soon as it was read.
class reply : public detail::owner<baton_reply, baton_reply_free> {
public:
    using owner::owner;

    const void* data() const {
        const void* data = nullptr;
        check(baton_reply_data(get(), &data, nullptr));
        return data;
    }

    std::size_t size() const {
        const void* data = nullptr;
        std::size_t bytes = 0;
        check(baton_reply_data(get(), &data, &bytes));
        return bytes;
    }

    // The elements of an answer of one tensor with fixed extents.
    template <class T>
    const T* as() const {
        return static_cast<const T*>(data());
    }
};

// How a task ended. `fields.reply` belongs to `answer`.
struct outcome {
    baton_outcome fields = detail::sized<baton_outcome>();
    reply answer;

    bool completed() const noexcept { return fields.kind == BATON_COMPLETED; }
    bool dropped() const noexcept { return fields.kind == BATON_DROPPED; }
    bool failed() const noexcept { return fields.kind == BATON_FAILED; }
    bool late() const noexcept { return fields.is_late != 0; }
    std::string_view reason() const { return baton_reason_name(fields.kind, fields.reason); }
    span latency() const { return span(fields.ended_ns - fields.submitted_ns); }

    // What happened to the task, and when.
    std::string explain() const {
        std::size_t needed = 0;
        check(baton_outcome_explain(&fields, nullptr, 0, &needed));
        std::string text(needed, '\0');
        check(baton_outcome_explain(&fields, text.data(), text.size(), nullptr));
        text.resize(needed - 1);
        return text;
    }
};

class ticket : public detail::owner<baton_ticket, baton_ticket_free> {
public:
    using owner::owner;

    // The outcome; empty if none came within the timeout. It comes once.
    std::optional<outcome> wait(span timeout) {
        outcome ended;
        if (check(baton_ticket_wait(get(), detail::count(timeout), &ended.fields)) != BATON_OK) return std::nullopt;
        release();  // used up
        ended.answer = reply(ended.fields.reply);
        return ended;
    }

    outcome wait() {
        for (;;) {
            if (auto ended = wait(forever)) return std::move(*ended);
        }
    }

    std::optional<outcome> poll() { return wait(span::zero()); }
    void cancel() const { check(baton_ticket_cancel(get())); }
};

// A slot's input: write `data()`, then submit.
class input : public detail::owner<baton_input, baton_input_free> {
public:
    using owner::owner;

    void* data() const {
        void* data = nullptr;
        check(baton_input_data(get(), &data, nullptr));
        return data;
    }

    std::size_t size() const {
        void* data = nullptr;
        std::size_t bytes = 0;
        check(baton_input_data(get(), &data, &bytes));
        return bytes;
    }

    template <class T>
    T* as() const {
        return static_cast<T*>(data());
    }

    void truncate(std::size_t bytes) const { check(baton_input_truncate(get(), bytes)); }
    void cost(std::uint32_t units) const { check(baton_input_cost(get(), units)); }

    // Uses the input up, unless it throws. The answer is due `within` from now, or by the model's own objective.
    ticket submit(span within) { return submit_within(detail::count(within)); }
    ticket submit() { return submit_within(BATON_SLO); }

    // Submits before the input is written: write `data()` while the task queues, then finish(). Destroyed unfinished, it
    // cancels the task.
    ticket submit_ahead(span within) const { return submit_ahead_within(detail::count(within)); }
    ticket submit_ahead() const { return submit_ahead_within(BATON_SLO); }

    // It is written, and used up unless this throws.
    void finish() {
        check(baton_input_finish(get()));
        release();
    }

private:
    ticket submit_ahead_within(std::uint64_t within_ns) const {
        baton_ticket handle{};
        check(baton_input_submit_ahead(get(), within_ns, &handle));
        return ticket(handle);
    }

    ticket submit_within(std::uint64_t within_ns) {
        baton_ticket handle{};
        check(baton_input_submit(get(), within_ns, &handle));
        release();  // used up
        return ticket(handle);
    }
};

class model : public detail::owner<baton_model, baton_model_free> {
public:
    using owner::owner;

    baton_model_info info() const {
        auto info = detail::sized<baton_model_info>();
        check(baton_model_describe(get(), &info));
        return info;
    }

    // `side` is BATON_INPUTS or BATON_OUTPUTS.
    baton_tensor tensor(std::int32_t side, std::size_t index) const {
        auto tensor = detail::sized<baton_tensor>();
        check(baton_model_tensor(get(), side, index, &tensor));
        return tensor;
    }

    // A tensor of an answer of this model, valid as long as the reply.
    baton_tensor tensor_of(const reply& answer, std::size_t index) const {
        auto tensor = detail::sized<baton_tensor>();
        check(baton_reply_tensor(answer.get(), get(), index, &tensor));
        return tensor;
    }

    // A free slot's input; throws BATON_E_NO_SLOT without one.
    baton::input input() const {
        baton_input handle{};
        check(baton_model_input(get(), 0, &handle));
        return baton::input(handle);
    }

    // The same, but waits; empty if none was free within the timeout.
    std::optional<baton::input> input(span timeout) const {
        baton_input handle{};
        const auto wait_ns = detail::count(timeout);
        if (check(baton_model_input(get(), wait_ns, &handle)) != BATON_OK) return std::nullopt;
        return baton::input(handle);
    }

    baton::input input_of(const std::vector<baton_tensor>& tensors) const {
        baton_input handle{};
        check(baton_model_input_of(get(), tensors.data(), tensors.size(), &handle));
        return baton::input(handle);
    }
};

// What a completion queue gives.
struct completion {
    std::uint64_t tag;
    baton::outcome outcome;
};

class queue : public detail::owner<baton_queue, baton_queue_free> {
public:
    using owner::owner;

    explicit queue(std::size_t capacity) : owner(make(capacity)) {}

    // Readable while an outcome may be there.
    int fd() const {
        int fd = -1;
        check(baton_queue_fd(get(), &fd));
        return fd;
    }

    // Uses the ticket up, unless it throws.
    baton_key add(ticket&& added, std::uint64_t tag) const {
        baton_key key{};
        check(baton_queue_add(get(), added.get(), tag, &key));
        added.release();
        return key;
    }

    // The next outcome; empty if none came within the timeout, or if none is to come.
    std::optional<completion> next(span timeout = span::zero()) const {
        completion done{0, {}};
        const auto wait_ns = detail::count(timeout);
        if (check(baton_queue_next(get(), wait_ns, &done.tag, &done.outcome.fields)) != BATON_OK) return std::nullopt;
        done.outcome.answer = reply(done.outcome.fields.reply);
        return done;
    }

    void cancel(baton_key key) const { check(baton_queue_cancel(get(), key)); }

    std::size_t size() const {
        std::size_t len = 0;
        check(baton_queue_len(get(), &len));
        return len;
    }

private:
    static baton_queue make(std::size_t capacity) {
        baton_queue handle{};
        check(baton_queue_new(capacity, &handle));
        return handle;
    }
};

class client : public detail::owner<baton_client, baton_client_free> {
public:
    using owner::owner;

    explicit client(const std::string& scheduler) : owner(join(scheduler)) {}
    explicit client(const baton_config& config) : owner(join(config)) {}

    // Settings with defaults, to be changed and given to the constructor.
    static baton_config config(const char* scheduler) noexcept {
        auto config = detail::sized<baton_config>();
        config.scheduler = scheduler;
        return config;
    }

    baton::model model(const std::string& name) const {
        baton_model handle{};
        check(baton_client_model(get(), name.c_str(), &handle));
        return baton::model(handle);
    }

    std::vector<baton::model> models() const {
        std::size_t count = 0;
        check(baton_client_model_count(get(), &count));
        std::vector<baton::model> all;
        for (std::size_t index = 0; index < count; ++index) {
            baton_model handle{};
            check(baton_client_model_at(get(), index, &handle));
            all.emplace_back(handle);
        }
        return all;
    }

    std::uint32_t slots_in_use() const {
        std::uint32_t slots = 0;
        check(baton_client_slots_in_use(get(), &slots));
        return slots;
    }

    std::uint64_t counter(const char* name) const {
        std::uint64_t value = 0;
        check(baton_client_counter(get(), name, &value));
        return value;
    }

    // Ends the connection in order, and waits for outstanding tasks. Without it the connection ends in the background.
    void leave() { check(baton_client_leave(release())); }

private:
    static baton_client join(const std::string& scheduler) { return join(config(scheduler.c_str())); }

    static baton_client join(const baton_config& config) {
        baton_client handle{};
        check(baton_client_connect(&config, &handle));
        return handle;
    }
};

}  // namespace baton

#endif
