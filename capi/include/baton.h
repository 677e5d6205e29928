/* Baton's client library for C: deadline-aware DNN inference. Guide: docs/c.md; programs: capi/examples/.
 *
 * A program connects, takes a free input of a model, writes it in place, and submits it with a deadline. The ticket gives
 * the task's one outcome: completed, dropped (reason) or failed (reason).
 *
 * Statuses. Each function returns BATON_OK, another status of 0 or above that says what is not there yet, or one below 0.
 * Below 0 the call has done nothing, and baton_error() says in words what is wrong and what to do.
 *
 * Handles. A handle is a number in a struct of its own. It ends where a function is said to use it up, and with its
 * ..._free. A handle that has ended, or was never given, is refused with BATON_E_HANDLE. Zero is no handle. Freeing a
 * client does not end handles that came from it.
 *
 * Pointers. A pointer that is given must point to what its type says, for the time of the call. NULL is refused with
 * BATON_E_ARGUMENT, except where "may be NULL" is said.
 *
 * Structs. The first field of each struct is its size. Set it before the struct is given to a function, for input or for
 * output: baton_outcome outcome = { .struct_size = sizeof outcome }. Later versions add fields at the end; programs that
 * were compiled before go on working.
 *
 * Threads. Any thread may call any function. One thread at a time may use an input, or wait for a ticket.
 *
 * Processes. A child of fork() has no I/O thread: once a client has been connected, every call in a child is refused with
 * BATON_E_FORKED. A process may end at any time, with tasks outstanding.
 *
 * Times are nanoseconds. Moments (submitted_ns, ...) are on the clock of the client, which baton_client_now() reads.
 */
#ifndef BATON_H
#define BATON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of this header. baton_abi_version() is that of the library in use; a program compiled with another must be compiled again. */
#define BATON_ABI_VERSION 1

/* ---- statuses ---- */

#define BATON_OK 0
#define BATON_PENDING 1             /* nothing came within the timeout */
#define BATON_EMPTY 2               /* the queue holds no task: nothing will come */
#define BATON_E_ARGUMENT (-1)       /* an argument cannot be used */
#define BATON_E_HANDLE (-2)         /* a handle has ended, or is none */
#define BATON_E_BUSY (-3)           /* another thread is in a call with this handle */
#define BATON_E_CONNECT (-4)        /* the client could not join a scheduler */
#define BATON_E_UNKNOWN_MODEL (-5)  /* this client has no model of this name */
#define BATON_E_NO_SLOT (-6)        /* every slot of the model is in use: wait for tickets, free replies, or shed load */
#define BATON_E_MODEL_REMOVED (-7)  /* an operator has removed the model */
#define BATON_E_CLIENT_CLOSED (-8)  /* baton_client_leave() was called */
#define BATON_E_DEADLINE_PASSED (-9)
#define BATON_E_SCHEDULER_LOST (-10) /* the client reconnects by itself: try again in 100 ms */
#define BATON_E_QUEUE_FULL (-11)    /* the completion queue holds as many tasks as it can */
#define BATON_E_LEAVE (-12)         /* the client has ended, but not in order */
#define BATON_E_TENSORS (-13)       /* the tensors are not those of the model */
#define BATON_E_SYSTEM (-14)        /* the system gave no memory, thread or descriptor */
#define BATON_E_FORKED (-15)
#define BATON_E_INTERNAL (-16)      /* a bug in the library; its message is on stderr */

/* What was wrong with the last call of this thread that returned less than 0. Valid until the next such call. */
const char *baton_error(void);

/* "ok", "no_slot", ...: for logs. Never NULL; valid for ever. */
const char *baton_status_name(int32_t status);

uint32_t baton_abi_version(void);
const char *baton_version(void);

/* ---- handles ---- */

typedef struct baton_client { uint64_t id; } baton_client;
typedef struct baton_model { uint64_t id; } baton_model;
typedef struct baton_input { uint64_t id; } baton_input;
typedef struct baton_ticket { uint64_t id; } baton_ticket;
typedef struct baton_reply { uint64_t id; } baton_reply;
typedef struct baton_queue { uint64_t id; } baton_queue;
/* Names a task in its completion queue. It needs no freeing. */
typedef struct baton_key { uint64_t id; } baton_key;

/* ---- client ---- */

/* Zero and NULL are the defaults (docs/client.md, "Connecting"); either scheduler or etcd must be set. */
typedef struct baton_config {
    uint32_t struct_size;
    uint32_t slots_per_model;     /* tasks of one model outstanding at once; default 128 */
    const char *scheduler;        /* "IP:PORT" */
    const char *etcd;             /* where standby schedulers are found: endpoints, separated by commas */
    const char *etcd_prefix;
    const char *const *models;    /* reserve memory for these only; default: all, also those added later */
    size_t model_count;
    const char *listen;           /* "IP:PORT" where backends reach this process; default: any port */
    const char *tls_ca;           /* paths of PEM files, all three or none */
    const char *tls_cert;
    const char *tls_key;
    uint32_t etcd_lease_ttl_s;    /* etcd.lease_ttl_s of the cluster file; default 2 */
    uint32_t reserved;
    uint64_t connect_timeout_ns;  /* default 5 s */
    uint64_t lease_grace_ns;      /* after its deadline, a task without an outcome fails then; default 1 s */
    uint64_t leave_timeout_ns;    /* default 10 s */
} baton_config;

/* Joins the scheduler. Blocks for connect_timeout_ns at most. */
int32_t baton_client_connect(const baton_config *config, baton_client *client);

/* Ends the connection in order, and the handle in any case: refuses new submits, waits for outstanding tasks, and for the
 * scheduler's confirmation. Tickets and replies stay valid. */
int32_t baton_client_leave(baton_client client);

/* Ends the handle. The connection ends in the background once no model, input or ticket of it is left. */
int32_t baton_client_free(baton_client client);

/* Now, on the client's clock. */
int32_t baton_client_now(baton_client client, uint64_t *now_ns);

/* Slots that are not free: inputs, tasks, tickets and replies. */
int32_t baton_client_slots_in_use(baton_client client, uint32_t *slots);

/* A counter by its name: "submitted", "completed", "resubmitted", ... (docs/metrics.md). */
int32_t baton_client_counter(baton_client client, const char *name, uint64_t *value);

/* ---- models ---- */

int32_t baton_client_model(baton_client client, const char *name, baton_model *model);
int32_t baton_client_model_count(baton_client client, size_t *count);
/* By their order of names, from 0. */
int32_t baton_client_model_at(baton_client client, size_t index, baton_model *model);
int32_t baton_model_free(baton_model model);

typedef struct baton_model_info {
    uint32_t struct_size;
    uint32_t is_removed;      /* 1: it gives no inputs any more */
    const char *name;         /* valid until baton_model_free() */
    size_t input_bytes;       /* of the longest input */
    size_t output_bytes;      /* of the longest answer */
    uint32_t input_count;     /* tensors */
    uint32_t output_count;
    uint64_t slo_ns;          /* its latency objective */
    uint64_t retry_after_ns;  /* how long to wait before another submit, as the scheduler last said; 0: not at all */
} baton_model_info;

int32_t baton_model_describe(baton_model model, baton_model_info *info);

/* What a tensor's elements are. Little endian; a bool is a byte, 0 or 1. */
#define BATON_F32 1
#define BATON_F64 2
#define BATON_F16 3
#define BATON_BF16 4
#define BATON_I8 5
#define BATON_I16 6
#define BATON_I32 7
#define BATON_I64 8
#define BATON_U8 9
#define BATON_U16 10
#define BATON_U32 11
#define BATON_U64 12
#define BATON_BOOL 13

#define BATON_RANK_MAX 8

#define BATON_INPUTS 0
#define BATON_OUTPUTS 1

typedef struct baton_tensor {
    uint32_t struct_size;
    int32_t element;     /* BATON_F32, ... */
    uint32_t rank;       /* dimensions, without the batch */
    uint32_t varies;     /* bit d: dimension d differs from task to task, and shape[d] is the most */
    uint32_t shape[BATON_RANK_MAX];
    const char *name;
    const void *data;    /* the elements, row major; NULL in a description */
    size_t bytes;        /* of the elements; in a description at most */
} baton_tensor;

/* Describes a tensor of the model: side is BATON_INPUTS or BATON_OUTPUTS. Its name is valid until baton_model_free(). */
int32_t baton_model_tensor(baton_model model, int32_t side, size_t index, baton_tensor *tensor);

/* ---- inputs ---- */

#define BATON_FOREVER UINT64_MAX

/* A free slot's input, to be written in place. It holds what its last user left. Without a free slot the call waits for
 * timeout_ns: BATON_PENDING if none came; with a timeout of 0 it returns BATON_E_NO_SLOT at once. */
int32_t baton_model_input(baton_model model, uint64_t timeout_ns, baton_input *input);

/* An input of these tensors, by their names in any order. name, rank, shape, data and bytes count. Needed only where the
 * model has several inputs, or extents that differ from task to task. Returns BATON_E_NO_SLOT as above. */
int32_t baton_model_input_of(baton_model model, const baton_tensor *tensors, size_t count, baton_input *input);

/* Where to write, and how many bytes; bytes may be NULL. Valid until the input is submitted or freed: later writes would go
 * into another task's input. */
int32_t baton_input_data(baton_input input, void **data, size_t *bytes);

/* The input is the first bytes of the slot, as many as are given here: for models whose inputs differ in length. */
int32_t baton_input_truncate(baton_input input, size_t bytes);

/* What the task will cost, in units such as tokens. No policy uses it yet. */
int32_t baton_input_cost(baton_input input, uint32_t units);

/* The model's own objective as a deadline. */
#define BATON_SLO UINT64_MAX

/* Hands the input over, and uses it up: the answer is due within_ns from now, or BATON_SLO. Never blocks. If it is refused,
 * the input stays as it is, to be submitted again or freed. */
int32_t baton_input_submit(baton_input input, uint64_t within_ns, baton_ticket *ticket);

/* Submits the task before its input is written: it queues meanwhile, and the answer is due within_ns from now. The handle stays:
 * baton_input_data says where to write, then baton_input_finish hands the input over. Truncate before. No backend reads the
 * input earlier; a batch that is formed without it goes without the task. What is not written by the deadline is dropped. */
int32_t baton_input_submit_ahead(baton_input input, uint64_t within_ns, baton_ticket *ticket);

/* The input of a task that was submitted ahead is written; uses the input up. */
int32_t baton_input_finish(baton_input input);

/* Frees its slot. If its task was submitted ahead, that is cancelled: an input that is not finished will not come. */
int32_t baton_input_free(baton_input input);

/* ---- outcomes ---- */

#define BATON_COMPLETED 1
#define BATON_DROPPED 2
#define BATON_FAILED 3

/* Why a task was dropped: it was not executed. What to do: docs/client.md, "Outcomes". */
#define BATON_DROPPED_DEADLINE 1
#define BATON_DROPPED_WINDOW 2
#define BATON_DROPPED_DEADLINE_PASSED 3
#define BATON_DROPPED_QUEUE_FULL 4
#define BATON_DROPPED_CANCELLED 5
#define BATON_DROPPED_FRONTEND_LOST 6
#define BATON_DROPPED_NO_BACKEND 7
#define BATON_DROPPED_SHUTDOWN 8
#define BATON_DROPPED_QUOTA 9
#define BATON_DROPPED_MODEL_REMOVED 10
#define BATON_DROPPED_ACCURACY 11

/* Why a task failed. */
#define BATON_FAILED_BACKEND_LOST 1
#define BATON_FAILED_STALE_GENERATION 2
#define BATON_FAILED_FETCH_TIMEOUT 3
#define BATON_FAILED_FETCH_FAILED 4
#define BATON_FAILED_ENGINE 5
#define BATON_FAILED_UNKNOWN_MODEL 6
#define BATON_FAILED_WRONG_SIZE 7
#define BATON_FAILED_SCHEDULER_LOST 8
#define BATON_FAILED_LEASE_EXPIRED 9

/* Which process ended it. */
#define BATON_BY_SCHEDULER 1
#define BATON_BY_BACKEND 2
#define BATON_BY_CLIENT 3

typedef struct baton_outcome {
    uint32_t struct_size;
    int32_t kind;             /* BATON_COMPLETED, BATON_DROPPED or BATON_FAILED */
    int32_t reason;           /* BATON_DROPPED_... or BATON_FAILED_...; 0 if completed */
    int32_t ended_by;         /* BATON_BY_... */
    uint32_t is_late;         /* completed, but after the deadline */
    uint32_t resubmitted;     /* how often the client submitted it again, to later schedulers */
    uint32_t batch_size;      /* completed: tasks in its batch */
    uint32_t gpu;             /* completed: the GPU slot */
    baton_reply reply;        /* completed: the answer, to be freed; else zero */
    uint64_t submitted_ns;
    uint64_t deadline_ns;
    uint64_t started_ns;      /* completed: when its batch began to execute */
    uint64_t finished_ns;     /* completed: when its batch was done */
    uint64_t ended_ns;        /* when the client had the outcome */
    uint64_t clock_error_ns;  /* completed: how wrong started_ns and finished_ns can be; UINT64_MAX: they are not known */
    uint64_t retry_after_ns;  /* dropped: how long to wait before another submit; 0: not known */
    uint32_t is_cold;         /* completed: no GPU slot held its model when it came, so it waited for a LOAD */
    uint32_t reserved;        /* zero */
} baton_outcome;

/* "deadline", "quota", "engine", ... of a kind and a reason. Never NULL; valid for ever. */
const char *baton_reason_name(int32_t kind, int32_t reason);

/* What happened to the task, and when, in a few lines. Writes at most room bytes, the zero byte included; needed, which may
 * be NULL, is how many the whole text has. The reply of a completed task must not have been freed. */
int32_t baton_outcome_explain(const baton_outcome *outcome, char *text, size_t room, size_t *needed);

/* The bytes of an answer, in the slot where it landed; bytes may be NULL. Valid until baton_reply_free(). */
int32_t baton_reply_data(baton_reply reply, const void **data, size_t *bytes);

/* A tensor of an answer of this model, by the order of BATON_OUTPUTS. Its data is valid until baton_reply_free(). */
int32_t baton_reply_tensor(baton_reply reply, baton_model model, size_t index, baton_tensor *tensor);

/* Lets the slot be used again: free a reply as soon as it was read. */
int32_t baton_reply_free(baton_reply reply);

/* ---- tickets ---- */

/* The outcome, which uses the ticket up. Waits for timeout_ns, or BATON_FOREVER: BATON_PENDING if none came. 0 looks once. */
int32_t baton_ticket_wait(baton_ticket ticket, uint64_t timeout_ns, baton_outcome *outcome);

/* Asks the scheduler to drop the task; any thread may, also while another waits. The outcome still comes:
 * BATON_DROPPED_CANCELLED, or the task's own. */
int32_t baton_ticket_cancel(baton_ticket ticket);

/* The task's id, as it appears in the logs of every process. */
int32_t baton_ticket_task(baton_ticket ticket, uint64_t *task);

/* Cancels the task; the program does not see the outcome. */
int32_t baton_ticket_free(baton_ticket ticket);

/* ---- completion queues: the outcomes of many tasks from one place, for event loops ---- */

/* A queue for at most capacity tasks at once. As many as all slots of its models are never too few. */
int32_t baton_queue_new(size_t capacity, baton_queue *queue);

/* A descriptor that is readable while an outcome may be there. Watch it; never read from it, never close it. Valid until
 * baton_queue_free(). */
int32_t baton_queue_fd(baton_queue queue, int *fd);

/* Takes a ticket over, and uses it up. Its outcome comes with tag. key, for baton_queue_cancel(), may be NULL. A full queue
 * refuses with BATON_E_QUEUE_FULL, and the ticket stays as it is. */
int32_t baton_queue_add(baton_queue queue, baton_ticket ticket, uint64_t tag, baton_key *key);

/* The next outcome, in the order in which they came; tag may be NULL. Waits for timeout_ns, or BATON_FOREVER. 0 never
 * blocks. BATON_EMPTY: no task is in the queue. */
int32_t baton_queue_next(baton_queue queue, uint64_t timeout_ns, uint64_t *tag, baton_outcome *outcome);

/* As baton_ticket_cancel(). */
int32_t baton_queue_cancel(baton_queue queue, baton_key key);

/* Tasks whose outcomes were not taken yet. */
int32_t baton_queue_len(baton_queue queue, size_t *len);

/* Cancels the tasks in it. No thread may be in baton_queue_next(). */
int32_t baton_queue_free(baton_queue queue);

#ifdef __cplusplus
}
#endif

#endif
