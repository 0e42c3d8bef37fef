#include "ovq/distributed/monitor.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>

namespace ovq::distributed {
namespace {

using std::chrono::milliseconds;

constexpr double kMissedBeats = 2.5;  // after so many missed beats a rank counts as lost
constexpr milliseconds kLeastPatience{600};
constexpr milliseconds kHurriedInterval{50};

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::string seconds_text(Monitor::Clock::duration duration) {
  std::ostringstream text;
  text.precision(2);
  text << std::chrono::duration<double>(duration).count() << " s";
  return text.str();
}

}  // namespace

std::string store_holder(const Rendezvous& rendezvous, const std::string& first) {
  const std::string store = "the store at " + rendezvous.address + ":" + std::to_string(rendezvous.port);
  return rendezvous.served ? store : first + ", which holds " + store + ",";
}

Monitor::Monitor(Store store, const Rendezvous& rendezvous, milliseconds timeout)
    : store_(std::move(store)),
      rendezvous_(rendezvous),
      timeout_(timeout),
      interval_(std::clamp(timeout / 8, milliseconds(20), milliseconds(1000))),
      ranks_(static_cast<size_t>(rendezvous.ranks), Rank{.heard = Clock::now()}),
      looked_(Clock::now()),
      thread_([this] { run(); }) {}

Monitor::~Monitor() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Monitor::count_operation() {
  const std::lock_guard lock(mutex_);
  ++operations_;
}

void Monitor::run() {
  const std::string host = host_name();
  for (int64_t beat = 0;; ++beat) {
    try {
      int64_t operations = 0;
      {
        const std::lock_guard lock(mutex_);
        operations = operations_;
      }
      store_.set("beat/" + std::to_string(rendezvous_.rank),
                 std::to_string(beat) + " " + std::to_string(operations) + " " + host);
      look();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      lost_ = error.what();
      changed_.notify_all();
      return;
    }
    std::unique_lock lock(mutex_);
    changed_.notify_all();
    const milliseconds pause = hurry_ ? std::min(interval_, kHurriedInterval) : interval_;
    changed_.wait_for(lock, pause, [this] { return ends_ || to_say_.has_value(); });
    if (ends_) return;
  }
}

void Monitor::look() {
  std::optional<std::string> to_say;
  {
    const std::lock_guard lock(mutex_);
    to_say = to_say_;
  }
  const std::string said = to_say ? store_.set_first(kVerdictKey, *to_say) : store_.get(kVerdictKey);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const std::string text = store_.get("beat/" + std::to_string(rank));
    std::istringstream in(text);
    const std::lock_guard lock(mutex_);
    Rank& one = ranks_[rank];
    std::string beat;
    in >> beat >> one.operations >> one.host;
    if (beat != one.beat) one.heard = Clock::now();
    one.beat = beat;
  }
  const std::lock_guard lock(mutex_);
  if (to_say) to_say_.reset();
  said_ = said;
  looked_ = Clock::now();
}

std::string Monitor::name(size_t rank) const {
  const std::string& host = ranks_[rank].host;
  return "rank " + std::to_string(rank) + (host.empty() ? "" : " (" + host + ")");
}

// Call with the lock held.
std::string Monitor::finding(const std::string& error) const {
  const auto now = Clock::now();
  const auto missed = std::chrono::duration_cast<Clock::duration>(interval_ * kMissedBeats);
  const std::string holder = store_holder(rendezvous_, name(0));
  if (!lost_.empty()) return holder + " has ended or cannot be reached";
  if (now - looked_ > missed) return holder + " has not answered for " + seconds_text(now - looked_);
  std::string gone, behind;
  int64_t least = operations_;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (now - ranks_[rank].heard > missed)
      gone += (gone.empty() ? "" : " and ") + name(rank) + " has ended or cannot be reached: no sign of it for " +
              seconds_text(now - ranks_[rank].heard);
    if (static_cast<int64_t>(rank) == rendezvous_.rank || ranks_[rank].operations > least) continue;
    if (ranks_[rank].operations < least) behind.clear();
    least = ranks_[rank].operations;
    behind += (behind.empty() ? "" : " and ") + name(rank);
  }
  if (!gone.empty()) return gone;
  if (least < operations_)
    return behind + " hangs: it has begun " + std::to_string(least) + " exchanges, rank " +
           std::to_string(rendezvous_.rank) + " waits for the end of number " + std::to_string(operations_);
  return "the exchange with the other ranks failed on " + name(static_cast<size_t>(rendezvous_.rank)) + ": " + error;
}

std::string Monitor::verdict(const std::string& error) {
  std::unique_lock lock(mutex_);
  // Long enough to notice missing beats or to receive another rank's verdict.
  const auto patience = std::max<milliseconds>(kLeastPatience, interval_ * 4);
  constexpr milliseconds kBetweenLooks{20};
  const auto end = Clock::now() + patience;
  hurry_ = true;
  while (said_.empty() && lost_.empty() && Clock::now() < end) changed_.wait_for(lock, kBetweenLooks);
  if (!said_.empty()) {
    linger(lock);
    return said_;
  }
  const std::string found = finding(error);
  lock.unlock();
  say(found);
  lock.lock();
  return said_.empty() ? found : said_;
}

void Monitor::say(const std::string& reason) {
  std::unique_lock lock(mutex_);
  if (!said_.empty() || !lost_.empty()) return;
  to_say_ = reason;
  changed_.notify_all();
  changed_.wait_for(lock, std::max<milliseconds>(kLeastPatience, interval_),
                    [this] { return !said_.empty() || !lost_.empty(); });
  linger(lock);
}

void Monitor::linger(std::unique_lock<std::mutex>& lock) {
  if (rendezvous_.served || rendezvous_.rank != 0 || !lost_.empty()) return;
  hurry_ = true;
  const auto end = Clock::now() + std::max<milliseconds>(kLeastPatience, interval_ * 3 / 2);
  changed_.wait_until(lock, end, [] { return false; });
}

}  // namespace ovq::distributed
