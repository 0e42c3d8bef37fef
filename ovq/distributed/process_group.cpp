#include "ovq/distributed/process_group.h"

#ifdef OVQ_WITH_GLOO

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <array>
#include <cstring>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ovq/base/error.h"
#include "ovq/base/files/descriptor.h"
#include "ovq/distributed/monitor.h"
#include "ovq/ops/torch/torch_compat.h"

namespace ovq::distributed {
namespace {

using StorePointer = c10::intrusive_ptr<c10d::Store>;

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string prefix_of(int64_t attempt) { return "ovq/" + std::to_string(attempt); }

// Sets a key unless it exists; returns its value.
std::string set_first(c10d::Store& store, const std::string& key, const std::string& value) {
  return text_of(store.compareSet(key, {}, bytes_of(value)));
}

std::string get_or_empty(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? text_of(store.get(key)) : std::string();
}

// This machine's address as seen from the store's machine, so that on several networks it is on the shared one. Empty
// if it cannot be determined.
std::string own_address(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;  // connecting sends no packets
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  std::string address;
  for (const addrinfo* one = found; one != nullptr && address.empty(); one = one->ai_next) {
    const files::Descriptor socket_file(socket(one->ai_family, one->ai_socktype, one->ai_protocol));
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    std::array<char, NI_MAXHOST> text{};
    auto* const where = reinterpret_cast<sockaddr*>(&own);
    if (socket_file && connect(socket_file.number(), one->ai_addr, one->ai_addrlen) == 0 &&
        getsockname(socket_file.number(), where, &size) == 0 &&
        getnameinfo(where, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
      address = text.data();
    }
  }
  freeaddrinfo(found);
  return address;
}

std::shared_ptr<::gloo::transport::Device> device_for(const Rendezvous& rendezvous) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"))
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  const std::string address = own_address(rendezvous.address, rendezvous.port);
  return address.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                         : c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

StorePointer connect_store(const Rendezvous& rendezvous, ProcessGroup::Duration timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(rendezvous.port);
  options.isServer = !rendezvous.served && rendezvous.rank == 0;
  options.waitWorkers = false;
  ops::leave_out_libuv(options);
  options.timeout = std::max<ProcessGroup::Duration>(timeout, std::chrono::seconds(1));  // whole seconds only
  try {
    return c10::make_intrusive<c10d::PrefixStore>(prefix_of(rendezvous.attempt),
                                                  c10::make_intrusive<c10d::TCPStore>(rendezvous.address, options));
  } catch (const std::exception& error) {
    const std::string at = rendezvous.address + ":" + std::to_string(rendezvous.port);
    const std::string why = error.what();
    if (options.isServer)
      throw std::runtime_error("cannot hold the store of the processes at " + at + ": " +
                               why.substr(0, why.find('\n')));
    throw RankFailure(store_holder(rendezvous, "rank 0") + " cannot be reached");
  }
}

std::string here_key(int64_t rank) { return "here/" + std::to_string(rank); }

// Waits until all ranks have arrived or one publishes why it will not. Polls because waiting in the store cannot be
// interrupted.
void meet(c10d::Store& store, const Rendezvous& rendezvous, ProcessGroup::Duration timeout) {
  constexpr std::chrono::milliseconds kBetweenLooks{10};
  store.set(here_key(rendezvous.rank), bytes_of("1"));
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < rendezvous.ranks; ++rank) keys.push_back(here_key(rank));
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!store.check(keys)) {
    if (store.check({kVerdictKey})) throw RankFailure(text_of(store.get(kVerdictKey)));
    if (std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(kBetweenLooks);
      continue;
    }
    std::ostringstream text;
    text << "rank";
    for (int64_t rank = 0; rank < rendezvous.ranks; ++rank) {
      if (!store.check({here_key(rank)})) text << " " << rank;
    }
    text << " of " << rendezvous.ranks << " did not connect within " << std::chrono::duration<double>(timeout).count()
         << " s";
    throw RankFailure(set_first(store, kVerdictKey, text.str()));
  }
}

Store monitored(const StorePointer& store) {
  return {
      .set = [store](const std::string& key, const std::string& value) { store->set(key, bytes_of(value)); },
      .get = [store](const std::string& key) { return get_or_empty(*store, key); },
      .set_first = [store](const std::string& key, const std::string& value) { return set_first(*store, key, value); }};
}

// Gloo's "[../gloo/transport/tcp/pair.cc:598] Connection closed by peer ..." in one line.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

struct ProcessGroup::Impl {
  StorePointer store;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
};

struct ProcessGroup::Pending::Work {
  c10::intrusive_ptr<c10d::Work> work;
  std::vector<at::Tensor> tensors;
};

ProcessGroup::ProcessGroup(const Rendezvous& rendezvous, Duration timeout)
    : rendezvous_(rendezvous), timeout_(timeout), impl_(std::make_unique<Impl>()) {
  check(rendezvous.ranks >= 1 && rendezvous.rank >= 0 && rendezvous.rank < rendezvous.ranks, "processes", "rank is ",
        rendezvous.rank, "; must be within 0 and ", rendezvous.ranks - 1);
  check(timeout.count() > 0, "processes", "the time-out is ", timeout.count(), " ms; must be positive");
  impl_->store = connect_store(rendezvous, timeout);
  meet(*impl_->store, rendezvous, timeout);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(device_for(rendezvous));
  try {
    impl_->gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("gloo", impl_->store), static_cast<int>(rendezvous.rank),
        static_cast<int>(rendezvous.ranks), options);
  } catch (const std::exception& error) {
    throw RankFailure("rank " + std::to_string(rendezvous.rank) +
                      " cannot connect to all others: " + first_line(error.what()));
  }
  monitor_ = std::make_unique<Monitor>(monitored(impl_->store), rendezvous, timeout);
}

// The monitor ends first because it uses the store.
ProcessGroup::~ProcessGroup() { monitor_.reset(); }

template <class Begin>
static auto attempted(Monitor& monitor, Begin&& begin) {
  try {
    return begin();
  } catch (const std::exception& error) {
    throw RankFailure(monitor.verdict(first_line(error.what())));
  }
}

void ProcessGroup::Pending::wait() {
  if (work_ == nullptr) return;
  attempted(*group_->monitor_, [&] { return work_->work->wait(); });
  work_ = nullptr;
}

ProcessGroup::Pending ProcessGroup::begun(std::shared_ptr<Pending::Work> work) {
  Pending pending;
  pending.group_ = this;
  pending.work_ = std::move(work);
  return pending;
}

ProcessGroup::Pending ProcessGroup::begin_sum(const at::Tensor& x) {
  monitor_->count_operation();
  auto work = std::make_shared<Pending::Work>();
  work->tensors = {x};
  work->work = attempted(*monitor_, [&] { return impl_->gloo->allreduce(work->tensors); });
  return begun(std::move(work));
}

ProcessGroup::Pending ProcessGroup::begin_broadcast(const at::Tensor& x, int64_t from) {
  monitor_->count_operation();
  c10d::BroadcastOptions options;
  options.rootRank = from;
  auto work = std::make_shared<Pending::Work>();
  work->tensors = {x};
  work->work = attempted(*monitor_, [&] { return impl_->gloo->broadcast(work->tensors, options); });
  return begun(std::move(work));
}

std::vector<at::Tensor> ProcessGroup::gather(const at::Tensor& x) {
  monitor_->count_operation();
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; rank < rendezvous_.ranks; ++rank) all.push_back(at::empty_like(x));
  std::vector<std::vector<at::Tensor>> outputs = {all};
  std::vector<at::Tensor> inputs = {x};
  attempted(*monitor_, [&] { return impl_->gloo->allgather(outputs, inputs)->wait(); });
  return all;
}

std::string ProcessGroup::broadcast(const std::string& text, int64_t from) {
  const at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  broadcast(size, from);
  at::Tensor bytes = at::zeros({size.item<int64_t>()}, at::kByte);
  if (bytes.numel() == 0) return {};
  if (rank() == from) std::memcpy(bytes.data_ptr<uint8_t>(), text.data(), text.size());
  broadcast(bytes, from);
  return {reinterpret_cast<const char*>(bytes.data_ptr<uint8_t>()), static_cast<size_t>(bytes.numel())};
}

bool ProcessGroup::any(bool here) {
  const at::Tensor count = at::full({1}, here ? 1 : 0, at::kLong);
  sum(count);
  return count.item<int64_t>() > 0;
}

void ProcessGroup::leave_with(const std::string& reason) noexcept {
  try {
    monitor_->say("rank " + std::to_string(rank()) + " ended: " + reason);
  } catch (const std::exception&) {  // the others will detect it themselves
  }
}

struct StoreServer::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreServer::StoreServer() : impl_(std::make_unique<Impl>()) {
  c10d::TCPStoreOptions options;
  options.port = 0;  // any free port
  options.isServer = true;
  options.waitWorkers = false;
  ops::leave_out_libuv(options);
  impl_->store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

StoreServer::~StoreServer() = default;

int StoreServer::port() const { return impl_->store->getPort(); }

void StoreServer::say(int64_t attempt, const std::string& reason) {
  c10d::PrefixStore store(prefix_of(attempt), impl_->store);
  set_first(store, kVerdictKey, reason);
}

std::string StoreServer::said(int64_t attempt) const {
  c10d::PrefixStore store(prefix_of(attempt), impl_->store);
  return get_or_empty(store, kVerdictKey);
}

}  // namespace ovq::distributed

#else

#include "ovq/distributed/monitor.h"

namespace ovq::distributed {
namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error("this build has no multi-process training; rebuild it with Gloo's headers (libgloo-dev)");
}

}  // namespace

struct ProcessGroup::Impl {};
struct ProcessGroup::Pending::Work {};
ProcessGroup::ProcessGroup(const Rendezvous&, Duration) { refuse(); }
ProcessGroup::~ProcessGroup() = default;
void ProcessGroup::Pending::wait() { refuse(); }
ProcessGroup::Pending ProcessGroup::begin_sum(const at::Tensor&) { refuse(); }
ProcessGroup::Pending ProcessGroup::begin_broadcast(const at::Tensor&, int64_t) { refuse(); }
std::string ProcessGroup::broadcast(const std::string&, int64_t) { refuse(); }
std::vector<at::Tensor> ProcessGroup::gather(const at::Tensor&) { refuse(); }
bool ProcessGroup::any(bool) { refuse(); }
void ProcessGroup::leave_with(const std::string&) noexcept {}
struct StoreServer::Impl {};
StoreServer::StoreServer() { refuse(); }
StoreServer::~StoreServer() = default;
int StoreServer::port() const { refuse(); }
void StoreServer::say(int64_t, const std::string&) { refuse(); }
std::string StoreServer::said(int64_t) const { refuse(); }

}  // namespace ovq::distributed

#endif
