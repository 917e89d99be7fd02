#pragma once

#include "transport/transport.h"
#include "transport/verbs/lifecycle.h"

namespace erdma::transport::verbs {

class Connection;
class VerbsLink;

/// What connections and links ask of the transport that they belong to.
class ConnectionOwner {
 public:
  /// The connection ends, in a later poll().
  virtual void break_connection(Connection& connection, int status, const char* why) noexcept = 0;
  virtual void phase_changed(Connection& connection, Phase before) noexcept = 0;
  /// The peer answered our request to give the connection up.
  virtual void on_answer(Connection& connection, bool agreed) noexcept = 0;
  /// As LifecycleHost::reopen().
  virtual bool reopen(Connection& connection) noexcept = 0;
  /// Takes completions to their connections. Returns how many.
  virtual int poll(Sink& sink) noexcept = 0;
  /// 0 never: -FI_EAGAIN = the link is being connected.
  virtual int connect(VerbsLink& link) noexcept = 0;
  /// The attempt to connect a link failed.
  virtual void down(VerbsLink& link, int status, Sink& sink) noexcept = 0;
  /// As Link::fail().
  virtual void fail(VerbsLink& link, int status) noexcept = 0;

 protected:
  ~ConnectionOwner() = default;
};

}  // namespace erdma::transport::verbs
