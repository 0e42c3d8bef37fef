# Debian's libsentencepiece-dev has no package configuration. Targets: SentencePiece::SentencePiece and, to train models,
# SentencePiece::Train.
include(FindPackageHandleStandardArgs)
find_path(SentencePiece_INCLUDE_DIR sentencepiece_processor.h)
find_library(SentencePiece_LIBRARY sentencepiece)
find_library(SentencePiece_TRAIN_LIBRARY sentencepiece_train)
mark_as_advanced(SentencePiece_INCLUDE_DIR SentencePiece_LIBRARY SentencePiece_TRAIN_LIBRARY)
find_package_handle_standard_args(SentencePiece
  REQUIRED_VARS SentencePiece_LIBRARY SentencePiece_TRAIN_LIBRARY SentencePiece_INCLUDE_DIR)

if(SentencePiece_FOUND AND NOT TARGET SentencePiece::SentencePiece)
  add_library(SentencePiece::SentencePiece UNKNOWN IMPORTED)
  set_target_properties(SentencePiece::SentencePiece PROPERTIES IMPORTED_LOCATION ${SentencePiece_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${SentencePiece_INCLUDE_DIR})
  add_library(SentencePiece::Train UNKNOWN IMPORTED)
  set_target_properties(SentencePiece::Train PROPERTIES IMPORTED_LOCATION ${SentencePiece_TRAIN_LIBRARY}
    INTERFACE_LINK_LIBRARIES SentencePiece::SentencePiece)
  # Since 0.2.2 its headers use abseil's Status.
  file(STRINGS ${SentencePiece_INCLUDE_DIR}/sentencepiece_processor.h sentencepiece_abseil REGEX "#include .absl/status/")
  if(sentencepiece_abseil)
    find_package(absl REQUIRED)
    target_link_libraries(SentencePiece::SentencePiece INTERFACE absl::status)
  endif()
endif()
