#include "ovq/distributed/context_parallel.h"

#include "ovq/ops/ovq_attention/torch.h"
#include "ovq/ops/torch/torch.h"

namespace ovq::distributed {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The call's number distinguishes the messages of several calls: backward may run them in any order.
struct ContextParallel::Link : torch::CustomClassHolder {
  std::shared_ptr<ProcessGroup> group;
  int64_t calls = 0, bytes = 0;
  std::vector<ProcessGroup::Pending> sending;

  enum class Message : int64_t { size, state, gradient };
  static int64_t tag(int64_t call, Message message) { return 3 * call + static_cast<int64_t>(message); }

  void send(const Tensor& x, int64_t to, int64_t tag) {
    bytes += static_cast<int64_t>(x.nbytes());
    sending.push_back(group->begin_send(x, to, tag));
  }
};

namespace {

using Link = ContextParallel::Link;
using LinkPointer = c10::intrusive_ptr<Link>;

void keep(AutogradContext* context, const LinkPointer& link, int64_t call) {
  context->saved_data["link"] = c10::IValue::make_capsule(link);
  context->saved_data["call"] = call;
}

LinkPointer kept_link(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Link>(context->saved_data["link"].toCapsule());
}

int64_t kept_tag(AutogradContext* context) {
  return Link::tag(context->saved_data["call"].toInt(), Link::Message::gradient);
}

// Concatenates tensors for a single message.
Tensor packed(const variable_list& tensors) {
  std::vector<Tensor> flat;
  for (const Tensor& tensor : tensors) flat.push_back(tensor.reshape(-1));
  return at::cat(flat);
}

// Marks the tensors of a state received from the previous rank; their gradients are sent back to it. `anchor` requires
// gradients so that backward reaches this function.
struct ReceivedState : torch::autograd::Function<ReceivedState> {
  static variable_list forward(AutogradContext* context, at::TensorList tensors, const Tensor& /*anchor*/,
                               const LinkPointer& link, int64_t call) {
    keep(context, link, call);
    return tensors.vec();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const LinkPointer link = kept_link(context);
    link->send(packed(gradients), link->group->rank() - 1, kept_tag(context));
    return variable_list(gradients.size() + 3);  // anchor, link and call
  }
};

// Returns o unchanged. Backward waits for the gradients of the state that was sent.
struct SentState : torch::autograd::Function<SentState> {
  static Tensor forward(AutogradContext* context, const Tensor& o, at::TensorList tensors, const LinkPointer& link,
                        int64_t call) {
    keep(context, link, call);
    context->save_for_backward(tensors.vec());
    return o.view_as(o);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const LinkPointer link = kept_link(context);
    const variable_list tensors = context->get_saved_variables();
    variable_list all = {gradients[0]};
    int64_t size = 0, first = 0;
    for (const Tensor& tensor : tensors) size += tensor.numel();
    const Tensor received = at::empty({size});
    link->group->receive(received, link->group->rank() + 1, kept_tag(context));
    for (const Tensor& tensor : tensors) {
      all.push_back(received.narrow(0, first, tensor.numel()).view(tensor.sizes()));
      first += tensor.numel();
    }
    all.resize(all.size() + 2);  // link and call
    return all;
  }
};

ops::StatePtr receive_state(const LinkPointer& link, int64_t call) {
  const int64_t from = link->group->rank() - 1;
  const Tensor size = at::zeros({1}, at::kLong);
  link->group->receive(size, from, Link::tag(call, Link::Message::size));
  const Tensor bytes = at::empty({size.item<int64_t>()}, at::kByte);
  link->group->receive(bytes, from, Link::tag(call, Link::Message::state));
  const ops::StatePtr state = ops::State::from_bytes(bytes);
  const Tensor anchor = at::zeros({}).requires_grad_();
  const variable_list tensors = state->tensors().list();
  const variable_list tracked = ReceivedState::apply(at::TensorList(tensors), anchor, link, call);
  return c10::make_intrusive<ops::State>(state->kernel(), ops::StateTensors::from(tracked, state->options()));
}

void send_state(const LinkPointer& link, int64_t call, const ops::State& state) {
  const int64_t to = link->group->rank() + 1;
  const Tensor bytes = state.to_bytes();
  link->send(at::full({1}, bytes.numel(), at::kLong), to, Link::tag(call, Link::Message::size));
  link->send(bytes, to, Link::tag(call, Link::Message::state));
}

}  // namespace

ContextParallel::ContextParallel(std::shared_ptr<ProcessGroup> group) : link_(c10::make_intrusive<Link>()) {
  link_->group = std::move(group);
}

ContextParallel::~ContextParallel() = default;

Tensor ContextParallel::ovq_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                      const kernels::OvqOptions& options) {
  const int64_t call = link_->calls++, rank = link_->group->rank(), last = link_->group->ranks() - 1;
  std::vector<ops::StatePtr> states;
  if (rank > 0) states.push_back(receive_state(link_, call));
  const ops::OvqResult result =
      ops::ovq_attention_with_state(q, k, v, beta, options, {}, states, {}, ops::Backend::fused);
  if (rank == last) return result.o;
  send_state(link_, call, *result.states.at(0));
  const variable_list tensors = result.states.at(0)->tensors().list();
  return SentState::apply(result.o, at::TensorList(tensors), link_, call);
}

void ContextParallel::finish() {
  for (ProcessGroup::Pending& one : link_->sending) one.wait();
  link_->sending.clear();
}

int64_t ContextParallel::bytes_sent() const { return link_->bytes; }

}  // namespace ovq::distributed
